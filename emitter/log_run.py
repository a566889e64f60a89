"""A run as its log tells it, in metrics: records into the life cycle that a training loop has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from . import catalog
from .catalog import Kind, Metric
from .instruments import record as record_metric
from .lifecycle import Lifecycle
from .records import Record
from .timers import record_phase_times

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

_Series = Mapping[tuple[str, ...], int | float]


class Past:
    """What a log says about the present before anybody follows it; what it counted then is over."""

    def __init__(self) -> None:
        self.attempt = 0
        self.phase = "startup"
        self.gauges: dict[Metric, int | float] = {}
        self.timers: dict[tuple[str, ...], int | float] = {}
        self._last_s: float | None = None
        self._begun_s: float | None = None
        self._saved_s: float | None = None
        """Stamps of the last record, the attempt's first one and the last checkpoint."""
        self._utc = False

    def take(self, record: Record) -> None:
        """Remember what a record says."""
        if record.attempt != self.attempt or record.kind == "start":
            self.attempt = record.attempt
            self.phase = "startup"
            self._begun_s = None
        self.phase = record.phase or self.phase
        self.gauges.update({metric: value for metric, value in record.values.items() if metric.kind is Kind.GAUGE})
        self.timers.update(record.series.get(catalog.TIMER_DURATION, {}))
        if record.stamp_s is not None:
            if record.utc is not self._utc:  # another clock
                self._begun_s = self._saved_s = None
            self._utc = record.utc
            self._last_s = record.stamp_s
            self._begun_s = record.stamp_s if self._begun_s is None else self._begun_s
            if record.kind == "checkpoint":
                self._saved_s = record.stamp_s

    def moments(self, now_s: float) -> dict[Metric, float]:
        """When the attempt began and the last checkpoint was complete, if the log's last words are as old as now."""
        if self._last_s is None:
            return {}
        of = {catalog.RUN_START_TIME: self._begun_s, catalog.CHECKPOINT_LAST_SUCCESS_TIME: self._saved_s}
        return {
            metric: now_s - (self._last_s - stamp_s)
            for metric, stamp_s in of.items()
            if stamp_s is not None and stamp_s <= self._last_s
        }


class LoggedRun:
    """A sink of records that is a run's metrics.

    `clock` gives the time by which phases are booked, as Unix time; `now` is what moments are stamped with, where that
    is another. After a `past` counters and histograms start at 0 and gauges show the present. The first attempt of
    the log is number `first_attempt`.
    """

    def __init__(
        self,
        meter: Meter,
        clock: Callable[[], float],
        *,
        now: Callable[[], float] | None = None,
        past: Past | None = None,
        first_attempt: int = 0,
    ) -> None:
        past = past or Past()
        self._meter = meter
        self._now = now or clock
        self._first_attempt = first_attempt
        self._attempt = past.attempt
        self._life = Lifecycle(meter, clock, attempt=first_attempt + past.attempt)
        self._life.enter(past.phase)
        for metric, value in {**past.gauges, **past.moments(self._now())}.items():
            if math.isfinite(value):
                record_metric(meter, metric, value)
        record_phase_times(meter, _pairs(past.timers))

    def __call__(self, record: Record) -> None:
        """Record what it says."""
        life = self._life
        came_back = life.phase == "ended" and record.phase not in (None, "ended")
        if record.attempt != self._attempt or came_back:
            self._attempt = record.attempt
            life.restart(self._first_attempt + record.attempt)
            record_metric(self._meter, catalog.RUN_START_TIME, self._now())
        values = dict(record.values)
        step_ms = values.pop(catalog.STEP_DURATION, math.nan)
        if math.isfinite(step_ms):
            life.step(_steps(record, step_ms), step_ms / 1000)
        elif record.phase is not None:
            life.enter(record.phase)
        for metric, value in values.items():
            record_metric(self._meter, metric, value)
        record_phase_times(self._meter, _pairs(record.series.get(catalog.TIMER_DURATION, {})))
        if record.kind == "checkpoint":
            record_metric(self._meter, catalog.CHECKPOINT_LAST_SUCCESS_TIME, self._now())


def _steps(record: Record, step_ms: float) -> int:
    """Iterations that a training line reports."""
    return 1 if record.length_s is None or step_ms <= 0 else max(1, round(record.length_s * 1000 / step_ms))


def _pairs(times_s: _Series) -> dict[str, tuple[float, float]]:
    """Minimum and maximum of each timer; where a log has the maximum alone, it is both."""
    slowest = {phase: value for (phase, agg), value in times_s.items() if agg == "max"}
    return {phase: (times_s.get((phase, "min"), value), value) for phase, value in slowest.items()}
