"""Cost of a recording, as ratios measured in one run. `python tests/bench_emitter.py` prints a table.

Ratios, since seconds on a shared machine mean nothing: the two sides are timed in turns and their
fastest rounds are compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog
from emitter.catalog import Kind
from emitter.instruments import record, record_training_metrics

ROUNDS = 30
SDK_LIMIT = 0.1  # a recording costs a tenth of what the SDK's own instruments cost
NO_OP_LIMIT = 3.0  # and next to nothing where metrics are off
VALUES = (1500.0, 2.5, 410.0, 0.7, 0.0, 3e-4, 1.0e6, 60.0)

Result = tuple[str, float, float]
"""What was measured, its ratio, the limit of the ratio."""


def _seconds(call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def _ratio(ours: Callable[[], object], theirs: Callable[[], object], calls: int) -> float:
    """Fastest round of ours / fastest round of theirs, the rounds taken in turns."""
    rounds = [(_seconds(ours, calls), _seconds(theirs, calls)) for _ in range(ROUNDS)]
    return min(mine for mine, _ in rounds) / min(other for _, other in rounds)


def _sdk_meter() -> tuple[Meter, InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("bench"), reader


def _synchronous(meter: Meter) -> Callable[[], None]:
    """The eight core metrics recorded with the SDK's synchronous instruments."""
    recorders: list[Callable[[float], None]] = []
    for metric in catalog.CORE:
        if metric.kind is Kind.HISTOGRAM:
            recorders.append(meter.create_histogram(metric.name, unit=metric.otel_unit).record)
        elif metric.kind is Kind.COUNTER:
            recorders.append(meter.create_counter(metric.name).add)
        else:
            recorders.append(meter.create_gauge(metric.name).set)

    def call() -> None:
        for recorder, value in zip(recorders, VALUES, strict=True):
            recorder(value)

    return call


def _empty(
    meter: object,
    step_duration_ms: object = None,
    loss: object = None,
    throughput_tflops: object = None,
    grad_norm: object = None,
    skipped_iters: object = None,
    learning_rate: object = None,
    tokens_per_sec: object = None,
    memory_allocated_gb: object = None,
) -> None:
    pass


def recording() -> list[Result]:
    """Eight values against the SDK, collections included, since they are part of the price."""
    meter, reader = _sdk_meter()
    sdk_meter, sdk_reader = _sdk_meter()
    synchronous = _synchronous(sdk_meter)

    def ours() -> None:
        record_training_metrics(meter, *VALUES)

    record_training_metrics(meter, *VALUES)
    results = [("record_training_metrics / 8 synchronous instruments", _ratio(ours, synchronous, 200), SDK_LIMIT)]
    reader.get_metrics_data()
    sdk_reader.get_metrics_data()

    phase = {"phase": "train"}
    gauge = sdk_meter.create_gauge("phase")
    ratio = _ratio(
        lambda: record(meter, catalog.RUN_PHASE, 1, phase),
        lambda: gauge.set(1, phase),
        2000,
    )
    return [*results, ("record with an attribute / synchronous gauge", ratio, 1.0)]


def no_op() -> list[Result]:
    """A recording where metrics are off against an empty function with the same arguments."""
    results = []
    for name, meter in (("None", None), ("no-op meter", NoOpMeter("bench"))):

        def ours(meter: Meter | None = meter) -> None:
            record_training_metrics(meter, *VALUES)

        def empty(meter: Meter | None = meter) -> None:
            _empty(meter, *VALUES)

        results.append((f"record_training_metrics({name}) / empty function", _ratio(ours, empty, 20_000), NO_OP_LIMIT))
    return results


def results() -> list[Result]:
    """Every measurement."""
    return recording() + no_op()


def show(measured: list[Result]) -> int:
    """Print what was measured; 1 if a limit is missed."""
    for name, ratio, limit in measured:
        print(f"{'ok  ' if ratio <= limit else 'SLOW'}  {ratio:7.3f}  (limit {limit:g})  {name}")
    return int(any(ratio > limit for _, ratio, limit in measured))


if __name__ == "__main__":
    sys.exit(show(results()))
