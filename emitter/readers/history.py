"""Readings to records: what only the lines before tell. The same for every family.

What cannot be seen in the lines, and how it is decided here:

- A loss that is NaN is left out by some layouts. A line of theirs without one reports a NaN, unless every iteration of
  its interval was skipped; then there is no loss, and a printed 0 is none either.
- An interval is as long as the distance to the line before, or to the iteration that was loaded; for a first line of
  neither it is the argument log_interval.
- An iteration that was reported already, with the same values or by another source, is no news. Where lines do not
  tell their source, the same loss is enough. From the same source with other values, or towards another target, it is
  the next attempt.
- Other statements that several ranks make are told once, as Echoes decides. A start, or a load, is that of the next
  attempt if its source has started or has results, or if the run is so far on that no rank of it can be that late.
- A run has ended when it says so, and also when the scheduler cancelled it: somebody, or the time limit, stopped it,
  and nobody needs to be told. A failed node is no such end. A log that just stops leaves its run in the phase it was
  in, as it would look to whoever watches it.
- What is counted ahead of a training line, such as DeepSpeed's overflows, counts where the line itself says less.
  A line without an iteration is about the one that was counted ahead; if none was, it cannot be placed.
- A validation loss in a training line stays there until the next validation: it is news when it changes.
- Whether times name their zone tells clocks apart: a launcher's in UTC and the program's own. Once training lines have
  times, those of the other clock count for nothing.
- Without a stamp, a step lasts what the time since the start tells.
- The first value of an argument in a process counts: DeepSpeed prints a world size of its own.
- Of a checkpoint, an evaluation or a load the log tells the length by stamps at both ends, or by a timer.
- Several ranks report their memory: a value counts if it is larger than those before in the same report. A rank that
  is a report late says nothing new.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping

from .. import catalog
from ..catalog import Kind, Metric
from ..records import Record, training_result
from .echoes import Echoes
from .elapsed import ElapsedClock
from .intervals import Interval, correct, without_first
from .lines import moment, names_zone
from .readings import Number, Reading

SETTINGS: dict[str, Metric] = {
    "world_size": catalog.WORLD_SIZE,
    "train_iters": catalog.TARGET_ITERATION,
    "global_batch_size": catalog.GLOBAL_BATCH_SIZE,
}
"""Arguments that are metrics."""

SOURCES = 4096
"""Sources, and REPORTED iterations, that are remembered: memory is constant in the length of a log."""

REPORTED = 256

LATE = 16
"""Results that other ranks may have told before one tells that it starts."""

ECHOED = frozenset(("validation", "start", "resume", "saving", "checkpoint", "phase", "end", "ahead", "timers", "hang"))
"""Kinds of readings that several ranks may print; the rest is compared by value."""

_RANK_OF = re.compile(r"\[rank-\d{1,9}/(\d{1,9})\]", re.ASCII)
"""Primus: a rank, and how many there are."""


class History:
    """One run, from its first line on."""

    def __init__(self) -> None:
        self.attempt = 0
        self._arguments: dict[str, int] = {}
        self._phase = "startup"
        self._results = 0
        """Of this attempt."""
        self._begin: int | None = None
        """Iteration that the process started from, if the log tells."""
        self._last: Interval | None = None
        self._target: Number | None = None
        self._reported: OrderedDict[int, Mapping[Metric, Number]] = OrderedDict()
        self._sources: OrderedDict[str, int] = OrderedDict()
        """The last iteration of each."""
        self._totals: dict[Metric, Number] = {}
        self._memory: tuple[int | None, dict[Metric, Number]] = (None, {})
        self._saving_since: float | None = None
        self._saved_by_stamps = False
        self._guarded: int | None = None
        self._echoes = Echoes()
        self._places: OrderedDict[str, int] = OrderedDict()
        """Iterations that were counted ahead, by source."""
        self._ahead: dict[Metric, Number] = {}
        """Values that were printed before the training line that they are of."""
        self._ahead_totals: dict[Metric, Number] = {}
        self._elapsed = ElapsedClock()
        self._validated: Number | None = None
        self._utc = False
        """Whether the last time that counted names its zone."""
        self._timed = False
        """Whether training lines have times."""

    def take(self, reading: Reading, source: str, stamp: str) -> list[Record]:
        """The records of a reading; none if it is no news."""
        stamp = reading.stamp or stamp
        seconds, microseconds = moment(stamp)
        if seconds is not None:
            utc = names_zone(stamp)
            if reading.kind == "train" or not self._timed:
                self._utc = utc
                self._timed = self._timed or reading.kind == "train"
            elif utc is not self._utc:
                seconds = None
        if reading.kind == "train":
            size = self._size(source) if reading.per_gpu and "world_size" not in self._arguments else []
            return [*size, *self._train(reading, source, seconds, microseconds)]
        if reading.kind == "settings":
            return self._settings(reading)
        if reading.kind == "ahead" and catalog.ITERATION in reading.values:
            _keep(self._places, source, int(reading.values[catalog.ITERATION]))
        if reading.kind in ECHOED and not self._is_news(reading, source):
            return []
        if reading.kind == "validation":
            return self._validation(reading, seconds)
        if reading.kind == "memory":
            return self._more_memory(reading, seconds)
        if reading.kind == "start":
            start = self._start(seconds)
            return [start, *self._settings(reading)]
        if reading.kind == "resume":
            return [*self._resume(reading, seconds), *self._settings(reading)]
        if reading.kind in ("saving", "checkpoint"):
            return [self._checkpoint(reading, seconds)]
        if reading.kind == "phase":
            return [self._to(reading.phase or self._phase, seconds)]
        if reading.kind == "end":
            return [] if self._phase == "ended" else [self._to("ended", seconds, "end")]
        if reading.kind == "guard":
            return self._guard(reading, seconds)
        if reading.kind == "ahead":
            for metric, value in reading.values.items():
                self._ahead[metric] = value + (self._ahead.get(metric, 0) if _counts(metric) else 0)
            self._ahead_totals.update(reading.cumulative)
        if reading.kind == "timers":
            values = dict(reading.values)
            if self._saved_by_stamps:
                values.pop(catalog.CHECKPOINT_SAVE_DURATION, None)
            return [self._record("timers", values=values, series=reading.series, stamp_s=seconds)]
        if reading.kind == "hang":
            return [self._record("hang", stamp_s=seconds)]
        return []

    def _record(self, kind: str, **more: object) -> Record:
        return Record(kind=kind, attempt=self.attempt, utc=self._utc, **more)  # type: ignore[arg-type]  # checked by Record's callers

    def place(self, reading: Reading, source: str) -> int | None:
        """The iteration that a training line is about, its own or the one counted ahead; None if nothing tells."""
        if reading.iteration is not None:
            return reading.iteration
        ahead = self._places.get(source, self._ahead.get(catalog.ITERATION))
        return None if ahead is None else int(ahead)

    def _is_news(self, reading: Reading, source: str) -> bool:
        """Whether a statement is no echo; makes room for the next attempt if it begins one."""
        begins = reading.kind in ("start", "resume")
        anew = begins and (source in self._sources or self._results > LATE or self._phase == "ended")
        if not self._echoes.is_news(reading, source, anew=anew):
            return False
        if reading.kind == "start" or (begins and self._results):
            self._next_attempt()
            self._echoes.is_news(reading, source, anew=True)
        return True

    def _train(self, reading: Reading, source: str, seconds: float | None, microseconds: bool) -> list[Record]:
        iteration = reading.iteration
        if iteration is None:
            iteration = self.place(reading, source)
        if iteration is None:
            return []
        if self._places:
            self._places.pop(source, None)
        printed = {**reading.values, **reading.per_gpu} if reading.per_gpu else reading.values
        ahead = self._ahead  # the next attempt has none
        if not self._news(iteration, printed, source, rounded=reading.rounded):
            return []
        values: dict[Metric, Number] = {catalog.ITERATION: iteration, **reading.values}
        if catalog.SKIPPED_ITERS in values and not math.isfinite(values[catalog.SKIPPED_ITERS]):
            del values[catalog.SKIPPED_ITERS]
        for metric, value in ahead.items():
            values[metric] = max(value, values.get(metric, 0)) if _counts(metric) else values.get(metric, value)
        last = self._last
        length = self._first_length(iteration) if last is None else iteration - last.iteration or None
        elapsed_ms = None
        if self._ahead_totals or reading.cumulative:
            totals = {**self._ahead_totals, **reading.cumulative}
            elapsed_ms = totals.pop(catalog.STEP_DURATION, None)
            self._add_totals(values, totals)
        passed_s = math.nan
        if catalog.STEP_DURATION not in values:
            if last and last.seconds is not None and seconds is not None and length:
                values[catalog.STEP_DURATION] = max(0.0, seconds - last.seconds) / length * 1000
            elif elapsed_ms is not None and (interval := self._elapsed.interval(iteration, elapsed_ms)):
                values[catalog.STEP_DURATION], passed_s = interval
        validation = self._new_validation(values, seconds) if catalog.VALIDATION_LOSS in values else []
        step_ms = values.get(catalog.STEP_DURATION, math.nan)
        skipped = int(values.get(catalog.SKIPPED_ITERS, 0))
        now = Interval(iteration, skipped, step_ms, seconds, microseconds, length, last is None)
        per_gpu = reading.per_gpu
        repeated = last if last and length and last.is_repeated(reading, length, self._arguments) else None
        if repeated and length and catalog.STEP_DURATION in reading.values:
            per_gpu = without_first(values, reading, length, repeated.step_ms)
            step_ms = values[catalog.STEP_DURATION]
        self._ahead, self._ahead_totals = {}, {}
        self._last = now
        self._results += 1
        self._phase = "train"
        covered = None if length is None else length + (repeated is not None)
        length_s = passed_s if math.isfinite(passed_s) else (length or math.nan) * step_ms / 1000
        self._derive(values, step_ms, per_gpu)
        correct(values, reading.silent_nan, covered, repeated)
        covered_s = max(0.0, length_s) if math.isfinite(length_s) else None
        return [*validation, training_result(values, self.attempt, seconds, self._utc, covered_s)]

    def _new_validation(self, values: dict[Metric, Number], seconds: float | None) -> list[Record]:
        """Take the validation loss out of the values of a training line; a record, if it changed."""
        loss = values.pop(catalog.VALIDATION_LOSS)
        if _equal(loss, self._validated):
            return []
        self._validated = loss
        found = {catalog.ITERATION: values[catalog.ITERATION], catalog.VALIDATION_LOSS: loss}
        return [self._record("validation", values=found, phase="train", stamp_s=seconds)]

    def _news(self, iteration: int, values: Mapping[Metric, Number], source: str, *, rounded: bool) -> bool:
        """Whether a training line tells something; begins the next attempt if it is one."""
        target = values.get(catalog.TARGET_ITERATION)
        before = self._sources.get(source)
        if self._last is None or iteration > self._last.iteration:
            news = True
        elif (target == self._target and _same(self._reported.get(iteration), values, sure=bool(source))) or (
            target == self._target and (before is None or before < iteration)
        ):
            news = False
        elif rounded and iteration == self._last.iteration:
            news = True
        else:
            self._next_attempt()
            news = True
        _keep(self._sources, source, iteration)
        if news:
            self._target = target
            self._reported[iteration] = values
            if len(self._reported) > REPORTED:
                self._reported.popitem(last=False)
        return news

    def _next_attempt(self) -> None:
        """Another process."""
        if self._results:
            self.attempt += 1
        self._results = 0
        self._echoes.clear()
        self._places.clear()
        self._guarded = None
        self._begin = self._last = None
        self._reported.clear()
        self._sources.clear()
        self._totals.clear()
        self._memory = (None, {})
        self._ahead, self._ahead_totals = {}, {}
        self._elapsed = ElapsedClock()
        self._validated = None

    def _first_length(self, iteration: int) -> int | None:
        begin = 0 if iteration == 1 else self._begin
        choices = (self._arguments.get("log_interval"), None if begin is None else iteration - begin)
        return min((choice for choice in choices if choice and choice > 0), default=None)

    def _add_totals(self, values: dict[Metric, Number], totals: Mapping[Metric, Number]) -> None:
        for metric, total in totals.items():
            values.setdefault(metric, max(0, total - self._totals.get(metric, 0)))
            self._totals[metric] = total

    def _derive(self, values: dict[Metric, Number], step_ms: float, per_gpu: Mapping[Metric, Number]) -> None:
        """Add what is computed from the arguments and not printed."""
        if world_size := self._arguments.get("world_size"):
            for metric, value in per_gpu.items():
                values.setdefault(metric, value * world_size)
        if sequence := self._arguments.get("seq_length"):
            batch = values.get(catalog.GLOBAL_BATCH_SIZE, self._arguments.get("global_batch_size"))
            if batch is not None and step_ms > 0:
                values.setdefault(catalog.TOKENS_PER_SEC, batch * sequence / (step_ms / 1000))
            if catalog.CONSUMED_SAMPLES in values:
                values.setdefault(catalog.CONSUMED_TOKENS, values[catalog.CONSUMED_SAMPLES] * sequence)

    def _settings(self, reading: Reading) -> list[Record]:
        new = {name: value for name, value in reading.settings.items() if name not in self._arguments}
        self._arguments.update(new)
        values = {SETTINGS[name]: value for name, value in new.items() if name in SETTINGS}
        return [self._record("run", values=values)] if values else []

    def _size(self, source: str) -> list[Record]:
        """The world size, if the source tells it."""
        match = _RANK_OF.search(source)
        return self._settings(Reading(kind="settings", settings={"world_size": int(match[1])})) if match else []

    def _validation(self, reading: Reading, seconds: float | None) -> list[Record]:
        if self._phase == "evaluate":
            self._phase = "train"
        values = dict(reading.values)
        if reading.iteration is not None:
            values = {catalog.ITERATION: reading.iteration, **values}
        return [self._record("validation", values=values, phase=self._phase, stamp_s=seconds)]

    def _more_memory(self, reading: Reading, seconds: float | None) -> list[Record]:
        report, largest = self._memory
        if report is not None and reading.iteration is not None and reading.iteration < report:
            return []
        if report != reading.iteration:
            largest = {}
        more = {metric: value for metric, value in reading.values.items() if value > largest.get(metric, -math.inf)}
        self._memory = (reading.iteration, {**largest, **more})
        return [self._record("memory", values=more, stamp_s=seconds)] if more else []

    def _guard(self, reading: Reading, seconds: float | None) -> list[Record]:
        """A value that a guard found before the line that would have reported it; each rank says so."""
        if reading.iteration is None or reading.iteration == self._guarded or not reading.values:
            return []
        self._guarded = reading.iteration
        values = {catalog.ITERATION: reading.iteration, **reading.values}
        return [self._record("train", values=values, phase="train", stamp_s=seconds)]

    def _start(self, seconds: float | None) -> Record:
        self._arguments.clear()
        self._begin = 0
        return self._to("startup", seconds, "start")

    def _resume(self, reading: Reading, seconds: float | None) -> list[Record]:
        self._begin = reading.iteration
        loaded = {} if reading.iteration is None else {catalog.CHECKPOINT_LAST_ITERATION: reading.iteration}
        return [self._record("resume", values=loaded, stamp_s=seconds)]

    def _checkpoint(self, reading: Reading, seconds: float | None) -> Record:
        if reading.kind == "saving":
            self._saving_since = seconds
            return self._to("checkpoint", seconds)
        values = dict(reading.values)
        if reading.iteration is not None:
            values[catalog.CHECKPOINT_LAST_ITERATION] = reading.iteration
        if self._saving_since is not None and seconds is not None and seconds >= self._saving_since:
            values[catalog.CHECKPOINT_SAVE_DURATION] = seconds - self._saving_since
            self._saved_by_stamps = True
        self._saving_since = None
        if self._phase == "checkpoint":
            self._phase = "train"
        return self._record("checkpoint", values=values, phase=self._phase, stamp_s=seconds)

    def _to(self, phase: str, seconds: float | None, kind: str = "phase") -> Record:
        """A change of phase. After the end only a new start counts: Megatron evaluates once more."""
        if self._phase == "ended" and phase in ("evaluate", "checkpoint"):
            phase = "ended"
        if phase == "ended" and self._phase != "ended":
            self._begin = None
        self._phase = phase
        return self._record(kind, phase=phase, stamp_s=seconds)


def _keep(iterations: OrderedDict[str, int], source: str, iteration: int) -> None:
    """Remember the iteration of a source; of too many sources, the last ones."""
    iterations[source] = iteration
    iterations.move_to_end(source)
    if len(iterations) > SOURCES:
        iterations.popitem(last=False)


def _counts(metric: Metric) -> bool:
    return metric.kind is Kind.COUNTER


def _same(known: Mapping[Metric, Number] | None, values: Mapping[Metric, Number], *, sure: bool) -> bool:
    """Whether two lines about one iteration are the same report."""
    if known is None:
        return False
    metrics = (catalog.LOSS,) if not sure else {*known, *values}
    return all(_equal(known.get(metric), values.get(metric)) for metric in metrics)


def _equal(one: Number | None, other: Number | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))
