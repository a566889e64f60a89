"""torchtitan's metric dictionary as catalog entries, of every generation since its release in April 2024.

What cannot be seen in the dictionary, and how it is decided here:

- Memory figures are negative where the device does not know them: left out.
- torchtitan divides the time since its last log by the log frequency. After the first step, a restart or a validation
  fewer steps have passed, and its seconds per step are too few; they are exported as they come.
- Optimizers and parameter groups follow one schedule, each from its own height. The largest learning rate shows it;
  it is not that of a group frozen at 0, and does not depend on anybody's order.
- Speed and memory of a validation have no metric, since they would be taken for the training's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, SupportsFloat
from weakref import WeakKeyDictionary

from . import catalog
from .catalog import Kind, Metric
from .instruments import is_off, record
from .repeats import Once

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

GIB = 1024**3

FIELDS: dict[str, tuple[tuple[Metric, float], ...]] = {
    "loss_metrics/global_avg_loss": ((catalog.LOSS, 1),),
    "loss_metrics/global_max_loss": ((catalog.LOSS_MAX, 1),),
    "grad_norm": ((catalog.GRAD_NORM, 1),),
    "tflops": ((catalog.THROUGHPUT_TFLOPS, 1),),
    "mfu(%)": ((catalog.MFU, 0.01),),
    "time_metrics/end_to_end(s)": ((catalog.STEP_DURATION, 1000),),
    "time_metrics/data_loading(s)": ((catalog.DATA_LOADING_TIME, 1),),
    "time_metrics/data_loading(%)": ((catalog.DATA_LOADING_SHARE, 0.01),),
    "memory/max_active(GiB)": ((catalog.MEMORY_MAX_ACTIVE, GIB), (catalog.MEMORY_ALLOCATED, 1)),
    "memory/max_active(%)": ((catalog.MEMORY_MAX_ACTIVE_SHARE, 0.01),),
    "memory/max_reserved(GiB)": ((catalog.MEMORY_MAX_RESERVED, GIB),),
    "memory/max_reserved(%)": ((catalog.MEMORY_MAX_RESERVED_SHARE, 0.01),),
    "memory/num_alloc_retries": ((catalog.MEMORY_ALLOC_RETRIES, 1),),
    "memory/num_ooms": ((catalog.MEMORY_OOMS, 1),),
    "n_tokens_seen": ((catalog.CONSUMED_TOKENS, 1),),
    "validation_metrics/loss": ((catalog.VALIDATION_LOSS, 1),),
}
"""Keys of the dictionary: metrics, each with what to multiply with."""

TOKENS_PER_DEVICE = ("throughput(tps)", "wps")
"""Tokens per second and device; `wps` until November 2024."""

_totals: WeakKeyDictionary[Meter, dict[str, float]] = WeakKeyDictionary()
"""Last reading of the process's own counters, by key."""
_once = Once(__name__)


def record_torchtitan_metrics(
    meter: Meter | None, metrics: Mapping[str, Any], world_size: int, step: int | None = None
) -> None:
    """Record a dictionary as torchtitan's loggers get it, of training or of validation: call it in a logger's `log`.

    `world_size` is the number of devices of the job, since torchtitan reports tokens per device. What is None or "N/A"
    is left out, and so are keys that torchtitan does not know: a metric of your own is an entry and a `record`.
    Never raises; each kind of failure is logged once.
    """
    if meter is None or is_off(meter):
        return
    try:
        record(meter, catalog.ITERATION, step)
        for metric, value in _values(meter, metrics, world_size):
            record(meter, metric, value)
    except Exception as error:
        _once.warn("torchtitan", "emitter.record_torchtitan_metrics: cannot record (got %r). Training goes on.", error)


def _values(meter: Meter, metrics: Mapping[str, Any], world_size: int) -> Iterator[tuple[Metric, SupportsFloat]]:
    """What to record. A value that cannot be read goes along as it is, for `record` to say so."""
    rates = []
    for key, given in metrics.items():
        if given is None or (isinstance(given, str) and given == "N/A"):
            continue
        if key == "lr" or key.startswith("lr/"):
            rates.append(given)
        elif key not in TOKENS_PER_DEVICE:
            yield from _fields(meter, key, given)
        elif world_size and world_size >= 1:
            yield catalog.TOKENS_PER_SEC, _scaled(given, world_size)
        else:
            _once.warn(
                "world size",
                "emitter.record_torchtitan_metrics: world_size is the number of devices (got %r). "
                "Without it there are no tokens per second.",
                world_size,
            )
    if rates:
        yield catalog.LEARNING_RATE, _largest(rates)


def _fields(meter: Meter, key: str, given: SupportsFloat) -> Iterator[tuple[Metric, SupportsFloat]]:
    for metric, factor in FIELDS.get(key, ()):
        value = _scaled(given, factor)
        if isinstance(value, float) and key.startswith("memory/"):
            if value < 0:
                return
            if metric.kind is Kind.COUNTER and isfinite(value):
                value = _increase(meter, key, value)
        yield metric, value


def _scaled(value: SupportsFloat, factor: float) -> SupportsFloat:
    try:
        return float(value) * factor
    except Exception:  # a tensor's float() may raise anything
        return value


def _increase(meter: Meter, key: str, total: float) -> float:
    """What a counter of the process grew by. It began at 0, and begins again when its statistics are reset."""
    totals = _totals.setdefault(meter, {})
    before = totals.get(key, 0.0)
    totals[key] = total
    return total - before if total >= before else total


def _largest(rates: list[SupportsFloat]) -> SupportsFloat:
    """The largest rate that can be read, else one that cannot."""
    scaled = [_scaled(rate, 1) for rate in rates]
    return max((rate for rate in scaled if isinstance(rate, float) and isfinite(rate)), default=scaled[0])
