"""torchtitan's dictionaries, as each generation writes them, become catalog entries; never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from emitter import torchtitan
from emitter.repeats import Once
from emitter.torchtitan import record_torchtitan_metrics

RELEASED = {
    "loss_metrics/global_avg_loss": 8.125,
    "loss_metrics/global_max_loss": 8.5,
    "wps": 1500.0,
    "mfu(%)": 42.5,
    "time_metrics/end_to_end(s)": 1.25,
    "time_metrics/data_loading(s)": 0.05,
    "time_metrics/data_loading(%)": 4.0,
    "memory/max_active(GiB)": 48.5,
    "memory/max_active(%)": 60.625,
    "memory/max_reserved(GiB)": 64.0,
    "memory/max_reserved(%)": 80.0,
    "memory/num_alloc_retries": 0,
    "memory/num_ooms": 0,
}
"""April 2024."""

COMPONENT = {key: value for key, value in RELEASED.items() if key != "wps"} | {
    "throughput(tps)": 1500.0,
    "tflops": 410.5,
}
"""March 2025, when the metrics became a component; tokens per second are `throughput(tps)` since November 2024."""

LEARNING_RATE = COMPONENT | {"grad_norm": 0.75, "lr": 3e-4}
"""July 2025."""

TODAY = COMPONENT | {
    "grad_norm": 0.75,
    "n_tokens_seen": 1_048_576,
    "lr/Muon": 0.02,
    "lr/AdamW/0": 0.0,
    "lr/AdamW/1": 3e-4,
}
"""Since June 2026: several optimizers, each with its parameter groups."""

QUANTIZED = {key: value for key, value in TODAY.items() if key != "mfu(%)"}

VALIDATION = {
    "validation_metrics/loss": 8.25,
    "validation_metrics/throughput(tps)": 3000.0,
    "validation_metrics/memory/max_active(GiB)": 30.0,
    "validation_metrics/memory/max_active(%)": 37.5,
    "validation_metrics/memory/max_reserved(GiB)": 40.0,
    "validation_metrics/memory/max_reserved(%)": 50.0,
}

OF_RELEASED = {
    "megatron.training.loss": 8.125,
    "megatron.training.loss_max": 8.5,
    "megatron.training.tokens_per_sec": 12_000.0,  # 8 devices
    "megatron.training.mfu": 0.425,
    "megatron.training.step_duration_ms count": 1,
    "megatron.training.step_duration_ms": 1250.0,
    "megatron.training.data_loading_time": 0.05,
    "megatron.training.data_loading_share": 0.04,
    "megatron.training.memory_allocated_gb": 48.5,
    "megatron.memory.max_active": 52_076_478_464,
    "megatron.memory.max_active_share": 0.60625,
    "megatron.memory.max_reserved": 68_719_476_736,
    "megatron.memory.max_reserved_share": 0.8,
    "megatron.memory.alloc_retries": 0,
    "megatron.memory.ooms": 0,
}
OF_COMPONENT = OF_RELEASED | {"megatron.training.throughput_tflops": 410.5}
OF_LEARNING_RATE = OF_COMPONENT | {"megatron.training.grad_norm": 0.75, "megatron.training.learning_rate": 3e-4}
OF_TODAY = OF_LEARNING_RATE | {"megatron.training.learning_rate": 0.02, "megatron.training.consumed_tokens": 1_048_576}
OF_QUANTIZED = {name: value for name, value in OF_TODAY.items() if name != "megatron.training.mfu"}
OF_VALIDATION = {"megatron.training.validation_loss": 8.25}


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning was given yet."""
    monkeypatch.setattr(torchtitan, "_once", Once(__name__))


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Meter:
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")


def values(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Exported values by name, without the counters that every meter begins with; of a histogram sum and count."""
    data = reader.get_metrics_data()
    found: dict[str, Any] = {}
    for resource in data.resource_metrics if data else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            if metric.name not in ("megatron.training.nonfinite", "megatron.training.skipped_iters"):
                (point,) = metric.data.data_points
                assert not point.attributes
                if isinstance(point, HistogramDataPoint):
                    found[metric.name], found[metric.name + " count"] = point.sum, point.count
                else:
                    found[metric.name] = point.value
    return found


@pytest.mark.parametrize(
    ("dictionary", "exported"),
    [
        pytest.param(RELEASED, OF_RELEASED, id="April 2024"),
        pytest.param(COMPONENT, OF_COMPONENT, id="March 2025"),
        pytest.param(LEARNING_RATE, OF_LEARNING_RATE, id="July 2025"),
        pytest.param(TODAY, OF_TODAY, id="today"),
        pytest.param(QUANTIZED, OF_QUANTIZED, id="quantized"),
        pytest.param(QUANTIZED | {"mfu(%)": "N/A"}, OF_QUANTIZED, id="quantized, as printed"),
        pytest.param(QUANTIZED | {"mfu(%)": None}, OF_QUANTIZED, id="quantized, with None"),
        pytest.param(VALIDATION, OF_VALIDATION, id="validation"),
        pytest.param({}, {}, id="empty"),
    ],
)
def test_each_generation(
    dictionary: dict[str, Any], exported: dict[str, Any], meter: Meter, reader: InMemoryMetricReader
) -> None:
    """Every key arrives in the catalog's unit, and nothing is made up for a key that is not there."""
    record_torchtitan_metrics(meter, dictionary, 8)
    assert values(reader) == pytest.approx(exported)


def test_the_step_is_a_gauge(meter: Meter, reader: InMemoryMetricReader) -> None:
    """The step is the iteration's value, and no attribute of anything."""
    record_torchtitan_metrics(meter, {"grad_norm": 1.0}, 8, 7)
    record_torchtitan_metrics(meter, VALIDATION, 8, step=10)
    record_torchtitan_metrics(meter, {}, 8)
    assert values(reader) == {
        "megatron.training.grad_norm": 1.0,
        "megatron.training.iteration": 10,
        "megatron.training.validation_loss": 8.25,
    }


def test_one_observation_a_call(meter: Meter, reader: InMemoryMetricReader) -> None:
    """Each logged interval is one step duration."""
    for seconds in (1.0, 2.0, 3.0):
        record_torchtitan_metrics(meter, {"time_metrics/end_to_end(s)": seconds}, 8)
    assert values(reader) == {
        "megatron.training.step_duration_ms": 6000.0,
        "megatron.training.step_duration_ms count": 3,
    }


@pytest.mark.parametrize(
    ("readings", "total"),
    [
        ([0], 0),
        ([3], 3),
        ([0, 2, 2, 5], 5),
        ([3, 1], 4),
        ([3, 0, 2], 5),
        ([2, -1, 3], 3),
        ([2, math.nan, 3], 3),
        ([2, None, 3], 3),
    ],
)
@pytest.mark.parametrize(
    ("key", "name"),
    [("memory/num_alloc_retries", "megatron.memory.alloc_retries"), ("memory/num_ooms", "megatron.memory.ooms")],
)
def test_counters_add_what_is_new(
    readings: list[Any], total: int, key: str, name: str, meter: Meter, reader: InMemoryMetricReader
) -> None:
    """A cumulative reading adds its increase; the first counts whole, one that falls began anew, -1 is unknown."""
    for reading in readings:
        record_torchtitan_metrics(meter, {key: reading}, 8)
    assert values(reader) == {name: total}


def test_counters_of_two_meters_do_not_mix(meter: Meter, reader: InMemoryMetricReader) -> None:
    """Each meter is told the whole count, wherever it began."""
    other_reader = InMemoryMetricReader()
    other = MeterProvider(metric_readers=[other_reader], shutdown_on_exit=False).get_meter("other")
    record_torchtitan_metrics(meter, {"memory/num_ooms": 2}, 8)
    record_torchtitan_metrics(other, {"memory/num_ooms": 3}, 8)
    assert values(reader) == {"megatron.memory.ooms": 2}
    assert values(other_reader) == {"megatron.memory.ooms": 3}
    other_reader.shutdown()


def test_memory_that_the_device_does_not_know_is_left_out(meter: Meter, reader: InMemoryMetricReader) -> None:
    """A reading of -1 byte, in whatever unit, and of -1 event is no reading."""
    gib, share = -1 / 1024**3, -100 / (80 * 1024**3)
    unknown = {
        f"memory/max_{kind}({unit})": value
        for kind in ("active", "reserved")
        for unit, value in (("GiB", gib), ("%", share))
    }
    record_torchtitan_metrics(meter, {**unknown, "memory/num_alloc_retries": -1, "memory/num_ooms": -1}, 8)
    assert values(reader) == {}


@pytest.mark.parametrize(
    ("rates", "exported"),
    [
        ({"lr": 3e-4}, 3e-4),
        ({"lr/AdamW": 3e-4}, 3e-4),
        ({"lr/AdamW/0": 0.0, "lr/AdamW/1": 3e-4}, 3e-4),
        ({"lr/Muon": 0.02, "lr/AdamW": 3e-4}, 0.02),
        ({"lr/AdamW": 0.0}, 0.0),
        ({"lr/AdamW/0": math.nan, "lr/AdamW/1": 3e-4}, 3e-4),
        ({"lr/AdamW/0": None, "lr/AdamW/1": 3e-4}, 3e-4),
    ],
)
def test_the_largest_learning_rate_is_shown(
    rates: dict[str, Any], exported: float, meter: Meter, reader: InMemoryMetricReader
) -> None:
    """Of several learning rates the largest is the run's: never a frozen group's 0, whatever the order."""
    record_torchtitan_metrics(meter, rates, 8)
    assert values(reader) == {"megatron.training.learning_rate": exported}


def test_what_torchtitan_does_not_know_is_left_alone(
    meter: Meter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """A user's own metrics, and keys that only look like torchtitan's, are ignored without a word."""
    own = {"moe/load": 1.0, "lrs": 2.0, "lr_warmup": 3.0, "loss": 4.0, "memory/peak": 5.0, "step": 6, "notes": "N/A"}
    record_torchtitan_metrics(meter, own | {"table": object()}, 8)
    assert values(reader) == {}
    assert not caplog.records


class Tensor:
    """A number on a device, which may be gone."""

    def __init__(self, value: float | None) -> None:
        self.value = value

    def __float__(self) -> float:
        if self.value is None:
            raise RuntimeError("CUDA error")
        return self.value

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("a comparison would be another tensor")

    __hash__ = None  # type: ignore[assignment]


def test_values_may_be_tensors(meter: Meter, reader: InMemoryMetricReader) -> None:
    """What has a float() is a number."""
    record_torchtitan_metrics(meter, {key: Tensor(float(value)) for key, value in TODAY.items()}, 8)
    assert values(reader) == pytest.approx(OF_TODAY)


@pytest.mark.parametrize("key", TODAY)
def test_an_unreadable_value_is_one_line_and_costs_no_other(
    key: str, meter: Meter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """A tensor whose float() raises is said once for its metric; everything else arrives."""
    for _ in range(2):
        record_torchtitan_metrics(meter, {key: Tensor(None), "validation_metrics/loss": 8.25}, 8, 5)
    assert values(reader) == {"megatron.training.validation_loss": 8.25, "megatron.training.iteration": 5}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines)) == (2 if key == "memory/max_active(GiB)" else 1)
    assert all("CUDA error" in line for line in lines)


def test_loss_that_is_not_finite_is_counted(meter: Meter, reader: InMemoryMetricReader) -> None:
    """A NaN loss is withdrawn and counted, as everywhere."""
    record_torchtitan_metrics(meter, {"loss_metrics/global_avg_loss": 8.0, "grad_norm": 1.0}, 8)
    record_torchtitan_metrics(meter, {"loss_metrics/global_avg_loss": Tensor(math.nan), "grad_norm": math.inf}, 8)
    assert values(reader) == {}
    data = reader.get_metrics_data()
    assert data is not None
    counted = {
        point.attributes["signal"]: point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
        if metric.name == "megatron.training.nonfinite"
    }
    assert counted == {"loss": 1, "grad_norm": 1}


@pytest.mark.parametrize("world_size", [0, -1, None])
def test_without_a_world_size_there_is_no_speed_of_the_job(
    world_size: Any, meter: Meter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """A number of devices that cannot be is said once; a speed of 0 would be a collapse to an alert."""
    for _ in range(2):
        record_torchtitan_metrics(meter, {"throughput(tps)": 1500.0, "grad_norm": 1.0}, world_size)
    assert values(reader) == {"megatron.training.grad_norm": 1.0}
    assert len(caplog.records) == 1
    assert f"world_size is the number of devices (got {world_size})" in caplog.text


@pytest.mark.parametrize("hostile", [None, 7, ["grad_norm"], {3: 1.0}])
def test_nonsense_does_not_raise(hostile: Any, meter: Meter, caplog: pytest.LogCaptureFixture) -> None:
    """Something else than a dictionary of names is one log line in the training loop."""
    record_torchtitan_metrics(meter, hostile, 8)
    record_torchtitan_metrics(meter, hostile, 8)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("off", [None, NoOpMeter("off")])
def test_off_means_off(off: Meter | None) -> None:
    """Without a meter no value is looked at, so that no rank waits for a device."""

    class Counting(Tensor):
        looked_at = 0

        def __float__(self) -> float:
            type(self).looked_at += 1
            return 1.0

    record_torchtitan_metrics(off, dict.fromkeys(TODAY, Counting(1.0)), 8, 5)
    assert Counting.looked_at == 0
