"""Megatron-LM's timers as a metric: how long each phase of an iteration takes, fastest and slowest rank."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, SupportsFloat

from . import catalog
from .instruments import is_off, record
from .repeats import Once
from .timer_table import CANONICAL

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

FOREIGN_LIMIT = 64
"""Timers outside the table that a process may export: more than Megatron-LM has, reinforcement learning included."""

NAME_LIMIT = 64
"""Characters of a foreign timer's name that are kept."""

_UNFIT = re.compile(r"[^a-z0-9_./-]+")
_foreign: set[str] = set()
_once = Once(__name__)


def record_phase_times(meter: Meter | None, times_s: Mapping[str, tuple[SupportsFloat, SupportsFloat]] | None) -> None:
    """Record the timers of a log interval: {timer: (minimum, maximum) across ranks}, in seconds of one iteration.

    That is what Megatron-LM's Timers compute before they print milliseconds. Every rank gathers, one exports:

        times_s = timers._get_global_min_max_time(
            timers_to_log, reset=False, barrier=False, normalizer=args.log_interval
        )
        record_phase_times(meter, times_s)

    A timer of the table is recorded as its phase, under whichever of its names it comes, with the ending `-time` or
    without. Others keep their own name, cleaned and cut, as far as FOREIGN_LIMIT goes. A pair that is not 0 ≤ minimum
    ≤ maximum is left out. Never raises; each kind of failure is logged once.
    """
    if meter is None or is_off(meter) or not times_s:
        return
    try:
        for timer, pair in times_s.items():
            _record_one(meter, timer, pair)
    except Exception as error:
        _once.warn("timers", "emitter.record_phase_times: cannot record (got %r). Training goes on.", error)


def _record_one(meter: Meter, timer: str, pair: tuple[SupportsFloat, SupportsFloat]) -> None:
    try:
        low, high = (float(value) for value in pair)
    except Exception as error:  # a tensor's float() may raise anything
        _leave_out(timer, repr(error))
        return
    if not (0 <= low <= high and isfinite(high)):
        _leave_out(timer, f"{low}, {high}")
        return
    phase = _phase(timer)
    if phase is not None:
        record(meter, catalog.TIMER_DURATION, low, {"phase": phase, "agg": "min"})
        record(meter, catalog.TIMER_DURATION, high, {"phase": phase, "agg": "max"})


def _leave_out(timer: str, got: str) -> None:
    _once.warn(
        "pair",
        "emitter.record_phase_times: times are 0 <= minimum <= maximum (got %s for %r). Such timers are left out.",
        got,
        timer,
    )


def _phase(timer: str) -> str | None:
    """The value of the attribute; None for a timer too many."""
    name = _UNFIT.sub("_", timer.lower())[:NAME_LIMIT]
    known = CANONICAL.get(name) or CANONICAL.get(name.removesuffix("-time"))
    if known or name in _foreign:
        return known or name
    if len(_foreign) >= FOREIGN_LIMIT:
        _once.warn(
            "foreign",
            "emitter.record_phase_times: a process exports at most %d timers outside the table (got %r as well). "
            "Further ones are left out.",
            FOREIGN_LIMIT,
            timer,
        )
        return None
    _foreign.add(name)
    return name
