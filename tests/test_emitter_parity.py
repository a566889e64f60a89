"""Drop-in parity with Megatron-LM's record_training_metrics, and every difference on purpose.

The tables are written by hand from Megatron-LM's contract, not computed from the catalog.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader, Sum
from opentelemetry.sdk.resources import Resource

from emitter.export import stamped
from emitter.instruments import prepare, record_training_metrics

Exported = dict[str, tuple[str, str, Any]]
"""Kind, unit and value by name; of a histogram count, sum, minimum and maximum."""


class Scalar:
    """What NumPy and PyTorch return instead of a float."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return float(self.value)


class Run:
    """A fresh provider with an in-memory reader."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], Resource({"nemo.run.id": "r7"}), shutdown_on_exit=False)
        self.meter = self.provider.get_meter("test")

    def call(self, *calls: Any) -> Run:
        """Each is a call's arguments: a tuple by position, a dictionary by name."""
        for arguments in calls:
            if isinstance(arguments, dict):
                record_training_metrics(self.meter, **arguments)
            else:
                record_training_metrics(self.meter, *arguments)
        return self

    def metrics(self, meter: str = "test") -> dict[str, Any]:
        """Metrics of a meter by name."""
        data = self.reader.get_metrics_data()
        scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
        return {metric.name: metric for scope in scopes if scope.scope.name == meter for metric in scope.metrics}

    def exported(self, meter: str = "test") -> Exported:
        """All that Megatron-LM knows, without the counters that are 0 so far: two of the differences below."""
        found = {name: described(metric) for name, metric in self.metrics(meter).items() if "nonfinite" not in name}
        if found.get(SKIPPED, ("", "", 1))[2] == 0:
            del found[SKIPPED]
        return found


def described(metric: Any) -> tuple[str, str, Any]:
    (point,) = metric.data.data_points
    assert not point.attributes
    kind = {"Gauge": "gauge", "Sum": "counter", "Histogram": "histogram"}[type(metric.data).__name__]
    value = (point.count, point.sum, point.min, point.max) if kind == "histogram" else point.value
    return kind, metric.unit or "", value


STEP = "megatron.training.step_duration_ms"
LOSS = "megatron.training.loss"
TFLOPS = "megatron.training.throughput_tflops"
GRAD_NORM = "megatron.training.grad_norm"
SKIPPED = "megatron.training.skipped_iters"
RATE = "megatron.training.learning_rate"
TOKENS = "megatron.training.tokens_per_sec"
MEMORY = "megatron.training.memory_allocated_gb"
NONFINITE = "megatron.training.nonfinite"


def gauge(value: float) -> tuple[str, str, Any]:
    return "gauge", "", value


def steps(*values: float) -> tuple[str, str, Any]:
    return "histogram", "ms", (len(values), sum(values), min(values), max(values))


def count(value: float) -> tuple[str, str, Any]:
    return "counter", "", value


ALL = {
    STEP: steps(1500.0),
    LOSS: gauge(2.5),
    TFLOPS: gauge(410.0),
    GRAD_NORM: gauge(0.75),
    SKIPPED: count(1),
    RATE: gauge(3e-4),
    TOKENS: gauge(1.1e6),
    MEMORY: gauge(61.5),
}
CALLS: dict[str, tuple[list[Any], Exported]] = {
    "nothing": ([()], {}),
    "everything by position": ([(1500.0, 2.5, 410.0, 0.75, 1, 3e-4, 1.1e6, 61.5)], ALL),
    "as Megatron-LM's training loop calls": (
        [
            {
                "step_duration_ms": 1500.0,
                "loss": 2.5,
                "throughput_tflops": None,
                "grad_norm": Scalar(0.75),
                "skipped_iters": 0,
                "learning_rate": 3e-4,
                "tokens_per_sec": 1.1e6,
                "memory_allocated_gb": 61.5,
            }
        ],
        {name: entry for name, entry in ALL.items() if name not in (TFLOPS, SKIPPED)},
    ),
    "the first two by position": ([(1500.0, 2.5)], {STEP: steps(1500.0), LOSS: gauge(2.5)}),
    "every other one None": (
        [(None, 2.5, None, 0.75, None, 3e-4, None, 61.5)],
        {LOSS: gauge(2.5), GRAD_NORM: gauge(0.75), RATE: gauge(3e-4), MEMORY: gauge(61.5)},
    ),
    "the others None": (
        [(1500.0, None, 410.0, None, 1, None, 1.1e6, None)],
        {STEP: steps(1500.0), TFLOPS: gauge(410.0), SKIPPED: count(1), TOKENS: gauge(1.1e6)},
    ),
    "all None": ([(None,) * 8], {}),
    "zeros are values": (
        [(0.0,) * 8],
        {STEP: steps(0.0), **dict.fromkeys((LOSS, TFLOPS, GRAD_NORM, RATE, TOKENS, MEMORY), gauge(0.0))},
    ),
    "integers": (
        [(1500, 2, 410, 1, 3, 0, 1_100_000, 61)],
        {
            **{STEP: steps(1500), LOSS: gauge(2), TFLOPS: gauge(410), GRAD_NORM: gauge(1), SKIPPED: count(3)},
            **{RATE: gauge(0), TOKENS: gauge(1_100_000), MEMORY: gauge(61)},
        },
    ),
    "scalars of an array library": ([tuple(Scalar(v) for v in (1500.0, 2.5, 410.0, 0.75, 1, 3e-4, 1.1e6, 61.5))], ALL),
    "skipped 0": ([{"skipped_iters": 0}], {}),
    "skipped None": ([{"skipped_iters": None}], {}),
    "skipped 3": ([{"skipped_iters": 3}], {SKIPPED: count(3)}),
    "skips add up": ([{"skipped_iters": skipped} for skipped in (1, 0, None, 3)], {SKIPPED: count(4)}),
    "two intervals": (
        [{"step_duration_ms": 100.0, "loss": 2.0}, {"step_duration_ms": 300.0, "loss": 1.5}],
        {STEP: steps(100.0, 300.0), LOSS: gauge(1.5)},
    ),
    "a gauge keeps its value through None": (
        [(None, 2.0, None, 1.0), (None, 1.75, None, None)],
        {LOSS: gauge(1.75), GRAD_NORM: gauge(1.0)},
    ),
    "an interval all of whose iterations were skipped": (
        [(1500.0, 2.5, None, 0.75), (1400.0, 0.0, None, None, 10)],
        {STEP: steps(1500.0, 1400.0), LOSS: gauge(0.0), GRAD_NORM: gauge(0.75), SKIPPED: count(10)},
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_same_calls_export_the_same(case: str) -> None:
    """Names, kinds, units and values are those that Megatron-LM's function would have exported."""
    calls, exported = CALLS[case]
    assert Run().call(*calls).exported() == exported


def test_the_counter_is_a_cumulative_monotonic_sum() -> None:
    """A receiver sees a counter, whatever instrument stands behind it."""
    data = Run().call({"skipped_iters": 3}).metrics()[SKIPPED].data
    assert isinstance(data, Sum)
    assert data.is_monotonic
    assert data.aggregation_temporality is AggregationTemporality.CUMULATIVE


def test_two_meters_do_not_mix() -> None:
    """Each meter has instruments of its own."""
    run = Run()
    record_training_metrics(run.meter, loss=1.0, skipped_iters=1)
    record_training_metrics(run.provider.get_meter("other"), 20.0, loss=2.0, skipped_iters=2)
    assert run.exported() == {LOSS: gauge(1.0), SKIPPED: count(1)}
    assert run.exported("other") == {STEP: steps(20.0), LOSS: gauge(2.0), SKIPPED: count(2)}


def test_a_no_op_meter_takes_everything() -> None:
    """A call site need not ask whether metrics are on."""
    record_training_metrics(NoOpMeter("off"), 1500.0, 2.5, 410.0, 0.75, 1, 3e-4, 1.1e6, 61.5)


# Differences on purpose.


def nonfinite(run: Run) -> dict[Any, Any]:
    return {point.attributes["signal"]: point.value for point in run.metrics()[NONFINITE].data.data_points}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("signal", ["loss", "grad_norm"])
def test_difference_nan_and_inf_are_counted(signal: str, value: float) -> None:
    """What is not finite of loss and gradient norm is counted; elsewhere the SDK drops it or, of old, exports it."""
    run = Run().call({signal: value}, {signal: value})
    assert nonfinite(run) == {"loss": 0, "grad_norm": 0, signal: 2}


@pytest.mark.parametrize("name", ["loss", "throughput_tflops", "grad_norm", "learning_rate", "tokens_per_sec"])
def test_difference_a_nan_withdraws_the_point(name: str) -> None:
    """No gauge shows the last finite value while the present one is NaN; a synchronous one does, or shows the NaN."""
    run = Run().call({name: 2.5}, {name: math.nan})
    assert run.exported() == {}
    assert run.call({name: 2.25}).exported() == {f"megatron.training.{name}": gauge(2.25)}


def test_difference_counters_are_zero_before_the_first_event() -> None:
    """A counter is there before it counts, so that its first increase is one; Megatron-LM's appears with a value."""
    run = Run()
    prepare(run.meter)
    assert described(run.metrics()[SKIPPED]) == count(0)
    assert nonfinite(run) == {"loss": 0, "grad_norm": 0}


def test_difference_a_step_of_minutes_has_a_bucket() -> None:
    """A step of 105 s lies between two bounds of ours, and in the overflow of a histogram as Megatron-LM creates it."""
    run = Run().call((105_000.0,))
    run.meter.create_histogram("megatron", unit="ms").record(105_000.0)
    bucket: dict[str, bool] = {}
    for name in (STEP, "megatron"):
        (point,) = run.metrics()[name].data.data_points
        bucket[name] = point.bucket_counts[-1] == 0
    assert bucket == {STEP: True, "megatron": False}


def test_difference_the_run_id_is_on_the_points() -> None:
    """Over OTLP the run id leaves the metrics' resource for every point: labels then hold it once, always."""
    run = Run().call((1500.0, 2.5, 410.0, 0.75, 1, 3e-4, 1.1e6, 61.5))
    data = run.reader.get_metrics_data()
    assert data is not None
    (resource,) = stamped(data, "r7", on_resource=False).resource_metrics
    assert "nemo.run.id" not in resource.resource.attributes
    points = [
        point for scope in resource.scope_metrics for metric in scope.metrics for point in metric.data.data_points
    ]
    assert len(points) == 10
    assert {(point.attributes or {}).get("nemo.run.id") for point in points} == {"r7"}


def unreadable() -> Any:
    class Lost(Scalar):
        def __float__(self) -> float:
            raise RuntimeError("CUDA error")

    return Lost(0)


@pytest.mark.parametrize("value", [unreadable, lambda: "many", lambda: -1])
@pytest.mark.parametrize("name", ["step_duration_ms", "skipped_iters"])
def test_difference_no_value_reaches_the_training_loop(
    name: str, value: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be recorded costs one log line and no other value; Megatron-LM's function raises or keeps silent."""
    run = Run().call({name: value(), "learning_rate": 3e-4}, {name: value()})
    assert run.exported() == {RATE: gauge(3e-4)}
    assert len(caplog.records) == 1


def test_difference_numbers_are_floats() -> None:
    """Every value is exported as a float; Megatron-LM's function passes on what it was given, a tensor included."""
    run = Run().call((1, Scalar(2.0), 3, 4, 5, 6, 7, 8))
    points = [
        point for metric in run.metrics().values() for point in metric.data.data_points if hasattr(point, "value")
    ]
    assert {type(point.value) for point in points} == {float}
