"""Recording: drop-in for Megatron-LM's function, cheap, and never an exception in the training loop."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

import emitter
from emitter import catalog, instruments, stores
from emitter.catalog import Kind
from emitter.instruments import prepare, record, record_training_metrics
from emitter.repeats import Once

Key = tuple[str, tuple[tuple[str, Any], ...]]


class Bench:
    """A fresh provider with in-memory readers."""

    def __init__(self, readers: int = 1) -> None:
        self.readers = [InMemoryMetricReader() for _ in range(readers)]
        self.provider = MeterProvider(metric_readers=self.readers, shutdown_on_exit=False)
        self.meter: Meter = self.provider.get_meter("test")

    def metrics(self, reader: int = 0) -> dict[str, Any]:
        """Collected metrics by name."""
        data = self.readers[reader].get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, reader: int = 0) -> dict[Key, Any]:
        """Collected points by name and attributes."""
        return {
            (name, tuple(sorted((point.attributes or {}).items()))): point
            for name, metric in self.metrics(reader).items()
            for point in metric.data.data_points
        }

    def values(self, reader: int = 0) -> dict[str, Any]:
        """Values of gauges and counters by short name; those of attributes as a dictionary."""
        found: dict[str, Any] = {}
        for (name, attributes), point in self.points(reader).items():
            if isinstance(point, HistogramDataPoint):
                continue
            short = catalog.get(name).short
            if attributes:
                found.setdefault(short, {})[attributes[0][1]] = point.value
            else:
                found[short] = point.value
        return found

    def histogram(self, metric: catalog.Metric, reader: int = 0) -> HistogramDataPoint | None:
        """The only point of a histogram."""
        points = [point for (name, _), point in self.points(reader).items() if name == metric.name]
        assert len(points) <= 1
        return points[0] if points else None


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Unreadable:
    """A tensor whose device is gone."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error")


ZEROS = {"skipped_iters": 0, "nonfinite": {"loss": 0, "grad_norm": 0}}
"""What a run exports that has recorded nothing yet."""

PARITY = [
    # What a Megatron call site passes, and what its own function would have exported.
    ({}, {}),
    ({"loss": 2.5}, {"loss": 2.5}),
    ({"loss": 0.0}, {"loss": 0.0}),
    ({"throughput_tflops": 410.5}, {"throughput_tflops": 410.5}),
    ({"grad_norm": 0.75}, {"grad_norm": 0.75}),
    ({"skipped_iters": 3}, {"skipped_iters": 3}),
    ({"learning_rate": 0.0}, {"learning_rate": 0.0}),
    ({"tokens_per_sec": 1e6}, {"tokens_per_sec": 1e6}),
    ({"memory_allocated_gb": 61.25}, {"memory_allocated_gb": 61.25}),
    ({"loss": 1, "grad_norm": None}, {"loss": 1.0}),
    ({"loss": -0.5}, {"loss": -0.5}),
]


@pytest.mark.parametrize(("arguments", "exported"), PARITY)
def test_parity_with_megatron(bench: Bench, arguments: dict[str, Any], exported: dict[str, Any]) -> None:
    """Each argument arrives at the instrument that Megatron-LM would have used, and None at none."""
    record_training_metrics(bench.meter, **arguments)
    assert bench.values() == {**ZEROS, **exported}


def test_parity_of_the_histogram(bench: Bench) -> None:
    """A step duration is one observation in milliseconds, over bounds that reach half an hour."""
    record_training_metrics(bench.meter, step_duration_ms=105_000.0)
    point = bench.histogram(catalog.STEP_DURATION)
    assert point is not None
    assert (point.count, point.sum, tuple(point.explicit_bounds)) == (1, 105_000.0, catalog.STEP_BOUNDS_MS)


def test_signature_is_megatrons() -> None:
    """A call site swaps the import and nothing else: same names, same order, all optional but the meter."""
    parameters = inspect.signature(record_training_metrics).parameters
    assert list(parameters) == ["meter", *(metric.short for metric in catalog.CORE)]
    assert all(parameter.default is None for name, parameter in parameters.items() if name != "meter")
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
    assert emitter.record_training_metrics is record_training_metrics


def test_positional_arguments(bench: Bench) -> None:
    """Eight positional values land in Megatron's order."""
    record_training_metrics(bench.meter, 1000.0, 2.0, 3.0, 4.0, 5, 6.0, 7.0, 8.0)
    assert bench.values() == {
        **ZEROS,
        "loss": 2.0,
        "throughput_tflops": 3.0,
        "grad_norm": 4.0,
        "skipped_iters": 5,
        "learning_rate": 6.0,
        "tokens_per_sec": 7.0,
        "memory_allocated_gb": 8.0,
    }


def test_declared_units_and_meanings(bench: Bench) -> None:
    """Every entry of the catalog can be recorded and is declared as the catalog says."""
    for metric in catalog.METRICS:
        record(bench.meter, metric, 1, dict.fromkeys(metric.attributes, "x"))
    exported = bench.metrics()
    assert set(exported) == {metric.name for metric in catalog.METRICS}
    for metric in catalog.METRICS:
        assert (exported[metric.name].unit, exported[metric.name].description) == (metric.otel_unit, metric.meaning)


def test_counters_are_zero_from_the_start(bench: Bench) -> None:
    """A counter is born at 0, so that its first increase can be seen."""
    prepare(bench.meter)
    assert bench.values() == ZEROS
    record_training_metrics(bench.meter, skipped_iters=2)
    record_training_metrics(bench.meter, skipped_iters=0)
    record_training_metrics(bench.meter, skipped_iters=1)
    assert bench.values()["skipped_iters"] == 3


def test_gauge_keeps_its_last_value_through_none(bench: Bench) -> None:
    """None leaves a gauge as it was, as in Megatron."""
    record_training_metrics(bench.meter, loss=2.5)
    record_training_metrics(bench.meter, loss=None, grad_norm=1.0)
    assert bench.values()["loss"] == 2.5


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("signal", catalog.SIGNALS)
def test_nonfinite_signal_is_counted_and_withdrawn(bench: Bench, signal: str, value: float) -> None:
    """A NaN or Inf of loss and gradient norm is counted, and its point is gone until the next finite value."""
    record_training_metrics(bench.meter, **{signal: 2.5})
    record_training_metrics(bench.meter, **{signal: value})
    assert bench.values() == {**ZEROS, "nonfinite": {**ZEROS["nonfinite"], signal: 1}}  # type: ignore[dict-item]
    record_training_metrics(bench.meter, **{signal: None})
    assert signal not in bench.values()
    record_training_metrics(bench.meter, **{signal: 2.25})
    assert bench.values()[signal] == 2.25


def test_other_nonfinite_values_are_dropped_with_one_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """What is not finite is left out, and said once for each metric."""
    for _ in range(3):
        record_training_metrics(bench.meter, step_duration_ms=math.nan, learning_rate=math.inf, skipped_iters=math.nan)
    assert bench.values() == ZEROS
    assert bench.histogram(catalog.STEP_DURATION) is None
    assert sorted(record.getMessage().split(":")[0] for record in caplog.records) == [
        "megatron.training.learning_rate",
        "megatron.training.skipped_iters",
        "megatron.training.step_duration_ms",
    ]


def test_unreadable_value_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A tensor whose float() raises costs one log line; the other values of the call arrive."""
    for _ in range(3):
        record_training_metrics(bench.meter, grad_norm=Unreadable(), loss=2.5, tokens_per_sec=7.0)
    assert bench.values() == {**ZEROS, "loss": 2.5, "tokens_per_sec": 7.0}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "megatron.training.grad_norm" in caplog.text
    assert "CUDA error" in caplog.text


@pytest.mark.parametrize("metric", [catalog.STEP_DURATION, catalog.SKIPPED_ITERS])
def test_negative_values_are_dropped(bench: Bench, caplog: pytest.LogCaptureFixture, metric: catalog.Metric) -> None:
    """Counters and histograms take nothing below 0, and say so once."""
    record(bench.meter, metric, -1)
    record(bench.meter, metric, -2)
    assert bench.values() == ZEROS
    assert bench.histogram(catalog.STEP_DURATION) is None
    assert len(caplog.records) == 1


def test_attributes(bench: Bench) -> None:
    """A value is kept for each set of attributes, whatever their order."""
    record(bench.meter, catalog.TIMER_DURATION, 1.0, {"phase": "optimizer", "agg": "max"})
    record(bench.meter, catalog.TIMER_DURATION, 7.0, {"agg": "max", "phase": "optimizer"})
    record(bench.meter, catalog.TIMER_DURATION, 2.0, {"phase": "optimizer", "agg": "max"})
    record(bench.meter, catalog.TIMER_DURATION, 3.0, {"agg": "min", "phase": "optimizer"})
    record(bench.meter, catalog.SPAN_DURATION, 4.0, {"span": "megatron.train", "group": "job"})
    points = bench.points()
    name = catalog.TIMER_DURATION.name
    assert points[name, (("agg", "max"), ("phase", "optimizer"))].value == 2.0
    assert points[name, (("agg", "min"), ("phase", "optimizer"))].value == 3.0
    assert points[catalog.SPAN_DURATION.name, (("group", "job"), ("span", "megatron.train"))].sum == 4.0


@pytest.mark.parametrize("meter", [None, "the test's meter"])
def test_undeclared_attribute_is_refused(bench: Bench, meter: str | None) -> None:
    """An attribute that the entry does not declare is an error at once, even where metrics are off."""
    message = (
        r"emitter\.record: 'megatron\.run\.phase' has the attributes: phase \(got 'phse'\)\. Did you mean 'phase'\?"
    )
    with pytest.raises(ValueError, match=message):
        record(bench.meter if meter else None, catalog.RUN_PHASE, 1, {"phse": "train"})
    with pytest.raises(ValueError, match="none"):
        record(bench.meter if meter else None, catalog.LOSS, 1, {"step": 12})


def test_unusable_attribute_value_becomes_text(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A value that cannot be a label is one all the same, told in words."""
    record(bench.meter, catalog.RUN_PHASE, 1, {"phase": ["train"]})  # type: ignore[dict-item]
    assert bench.values() == {**ZEROS, "run_phase": {"['train']": 1}}
    assert caplog.records == []


def test_record_leaves_none_out(bench: Bench) -> None:
    """A value of None is no value."""
    record(bench.meter, catalog.ITERATION, None)
    assert bench.values() == {}
    record(bench.meter, catalog.ITERATION, 7)
    record(bench.meter, catalog.ITERATION, None)
    assert bench.values()["iteration"] == 7


@pytest.mark.parametrize("meter", [None, NoOpMeter("off")])
def test_off_means_off(meter: Meter | None) -> None:
    """Without a meter, and with a no-op one, nothing is kept."""
    before = len(instruments._recorders)
    record_training_metrics(meter, 1.0, 2.0)
    record(meter, catalog.LOSS, 1.0)
    if meter is not None:
        prepare(meter)
    assert len(instruments._recorders) == before


def test_two_readers_see_the_same(bench: Bench) -> None:
    """With two readers each collection is complete, whoever comes first."""
    bench = Bench(readers=2)
    record_training_metrics(bench.meter, step_duration_ms=10.0, loss=2.0, skipped_iters=1)
    record_training_metrics(bench.meter, step_duration_ms=30.0)
    for reader in (1, 0):
        point = bench.histogram(catalog.STEP_DURATION, reader)
        assert point is not None
        assert (point.count, point.sum) == (2, 40.0)
        assert bench.values(reader)["skipped_iters"] == 1
    record_training_metrics(bench.meter, step_duration_ms=2.0)
    for reader in (0, 1):
        point = bench.histogram(catalog.STEP_DURATION, reader)
        assert point is not None
        assert (point.count, point.sum) == (3, 42.0)


def test_full_queue_loses_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """More values than the queue holds arrive all the same, without a collection in between."""
    monkeypatch.setattr(stores, "QUEUE_LIMIT", 8)
    for value in range(100):
        record_training_metrics(bench.meter, step_duration_ms=value)
    point = bench.histogram(catalog.STEP_DURATION)
    assert point is not None
    assert (point.count, point.sum) == (100, sum(range(100)))


def test_queue_is_bounded_without_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    """A histogram that could not be created does not hoard its values."""
    monkeypatch.setattr(stores, "QUEUE_LIMIT", 8)
    meter = Broken(("create_histogram",))
    for value in range(100):
        record_training_metrics(meter, step_duration_ms=value)
    recorder = instruments._recorders[meter]
    assert len(recorder.store(meter, catalog.STEP_DURATION)._queue) <= 8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "metric", [catalog.RUN_CONFIG, catalog.RUN_TIME, catalog.SPAN_DURATION], ids=lambda metric: metric.kind.value
)
def test_points_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, metric: catalog.Metric
) -> None:
    """An attribute with ever new values stops making points, with one line; those that are there go on."""
    monkeypatch.setattr(stores, "POINTS_LIMIT", 8)
    for value in (*range(100), 0):
        record(bench.meter, metric, 2.0, {metric.attributes[0]: value})
    points = {key[1][0][1]: point for key, point in bench.points().items() if key[0] == metric.name}
    assert set(points) == set(range(8))
    total = points[0].sum if metric.kind is Kind.HISTOGRAM else points[0].value
    assert total == (2.0 if metric.kind is Kind.GAUGE else 4.0)
    assert [record.message for record in caplog.records] == [
        f"{metric.name}: a metric has 8 points at most (got {{'{metric.attributes[0]}': 8}}). Such values are left out."
    ]


def test_a_name_has_one_kind(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """A second entry of a name that is of another kind is left out, with one line; the first goes on."""
    declared = {"name": catalog.LOSS.name, "unit": "none", "meaning": "A second loss.", "source": "A test."}
    for _ in range(3):
        record(bench.meter, catalog.LOSS, 2.5)
        record(bench.meter, catalog.Metric(kind=Kind.COUNTER, **declared), 1)
        record(bench.meter, catalog.Metric(kind=Kind.HISTOGRAM, bounds=(1.0,), **declared), 1)
    assert bench.values()["loss"] == 2.5
    assert len(caplog.records) == 2
    assert "a name has one kind, here gauge (got counter). Rename one of the two." in caplog.text


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_lose_no_count(bench: Bench) -> None:
    """Counts of several threads, and collections at the same time, add up."""
    prepare(bench.meter)

    def train() -> None:
        for _ in range(500):
            record_training_metrics(bench.meter, step_duration_ms=1.0, loss=math.nan, skipped_iters=1)

    threads = [threading.Thread(target=train) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        bench.values()
    values = bench.values()
    point = bench.histogram(catalog.STEP_DURATION)
    assert (values["skipped_iters"], values["nonfinite"]["loss"]) == (2000, 2000)
    assert point is not None
    assert point.count == 2000


class Broken(NoOpMeter):
    """A meter that cannot create some of its instruments."""

    def __init__(self, fails: tuple[str, ...]) -> None:
        super().__init__("broken")
        self.fails = fails

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("create_") and name in super().__getattribute__("fails"):
            raise RuntimeError("no instrument")
        return super().__getattribute__(name)


EVERY_KIND = ("create_histogram", "create_observable_counter", "create_observable_gauge")


@pytest.mark.parametrize("fails", [(kind,) for kind in EVERY_KIND] + [EVERY_KIND])
def test_failing_creation_is_logged_once(fails: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    """A meter that fails costs one warning and never an exception."""
    meter = Broken(fails)
    for _ in range(3):
        record_training_metrics(meter, *range(8))
        record(meter, catalog.CHECKPOINT_SAVE_DURATION, 1.0)
        record(meter, catalog.MEMORY_OOMS, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_meter_that_cannot_be_cached(caplog: pytest.LogCaptureFixture) -> None:
    """Not even a meter without weak references raises into the training loop."""
    instruments._once = Once(__name__)

    class Slotted:
        __slots__ = ()

    for _ in range(3):
        record_training_metrics(Slotted(), loss=1.0)  # type: ignore[arg-type]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("collected", [False, True])
def test_meter_is_freed(collected: bool) -> None:
    """The cache does not keep a meter alive, nor what it recorded."""
    bench = Bench()
    record_training_metrics(bench.meter, *range(8))
    record(bench.meter, catalog.CHECKPOINT_SAVE_DURATION, 1.0)
    if collected:
        bench.values()
    meter = weakref.ref(bench.meter)
    recorder = weakref.ref(instruments._recorders[bench.meter])
    bench.provider.shutdown()
    del bench
    gc.collect()
    assert meter() is None
    assert recorder() is None


def test_instruments_that_refer_to_their_meter_are_freed() -> None:
    """Even where an instrument refers to its meter, the cache does not keep the two alive."""

    class Owner(NoOpMeter):
        def create_histogram(self, *args: Any, **kwargs: Any) -> Any:
            histogram = super().create_histogram(*args, **kwargs)
            histogram.owner = self  # type: ignore[attr-defined]
            self.histogram = histogram
            return histogram

    meter = Owner("owner")
    record_training_metrics(meter, *range(8))
    freed = weakref.ref(meter)
    del meter
    gc.collect()
    assert freed() is None


def test_logger_is_the_modules(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Warnings come from this package's logger, where a site can silence them."""
    with caplog.at_level(logging.WARNING, logger="emitter.instruments"):
        record_training_metrics(bench.meter, learning_rate=math.nan)
    assert [record.name for record in caplog.records] == ["emitter.instruments"]
