"""Readings to records: what only the lines before tell. The same for every family.

What cannot be seen in the lines, and how it is decided here:

- A loss that is NaN is left out by some layouts. A line of theirs without one reports a NaN, unless every iteration of
  its interval was skipped; then there is no loss, and a printed 0 is none either.
- An interval is as long as the distance to the line before, or to the iteration that was loaded; for a first line of
  neither it is the argument log_interval.
- An iteration that was reported already, with the same values or by another source, is no news. Where lines do not
  tell their source, the same loss is enough. From the same source with other values, or towards another target, it is
  the next attempt. A source that has not printed all that others have is late with the same loss, also then.
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

import re
from collections.abc import Mapping

from .. import catalog
from ..catalog import Metric
from ..records import Record, training_result
from .lines import moment
from .process import Process
from .readings import Number, Reading

SETTINGS: dict[str, Metric] = {
    "world_size": catalog.WORLD_SIZE,
    "train_iters": catalog.TARGET_ITERATION,
    "global_batch_size": catalog.GLOBAL_BATCH_SIZE,
}
"""Arguments that are metrics."""

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
        self._process = Process()
        self._dead: Process | None = None
        """The process before, whose slower ranks may not have printed all that others have."""
        self._arguments: dict[str, int] = {}
        self._phase = "startup"
        self._saving_since: float | None = None
        self._saved_by_stamps = False
        self._utc = False
        """Whether the last time that counted names its zone."""
        self._timed = False
        """Whether training lines have times."""

    def take(self, reading: Reading, source: str, stamp: str) -> list[Record]:
        """The records of a reading; none if it is no news."""
        stamp = reading.stamp or stamp
        if reading.kind == "train":
            return self.train(reading, source, stamp)
        seconds, _, utc = moment(stamp)
        if seconds is not None:
            if not self._timed:
                self._utc = utc
            elif utc is not self._utc:
                seconds = None
        if reading.kind == "settings":
            return self._settings(reading)
        if reading.kind == "ahead":
            self._process.keep_place(reading, source)
        if reading.kind in ECHOED and not self._is_news(reading, source):
            return []
        return self._statement(reading, seconds)

    def _statement(self, reading: Reading, seconds: float | None) -> list[Record]:
        """The records of what is told once, by whoever comes first."""
        if reading.kind == "validation":
            return self._validation(reading, seconds)
        if reading.kind == "memory":
            return self._memory(reading, seconds)
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
            self._process.keep_ahead(reading)
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
        return self._process.place(reading, source)

    def _is_news(self, reading: Reading, source: str) -> bool:
        """Whether a statement is no echo; makes room for the next attempt if it begins one."""
        begins = reading.kind in ("start", "resume")
        process = self._process
        anew = begins and (process.has_results_of(source) or process.results > LATE or self._phase == "ended")
        if not process.echoes.is_news(reading, source, anew=anew):
            return False
        if reading.kind == "start" or (begins and process.results):
            self._next_attempt()
            self._process.echoes.is_news(reading, source, anew=True)
        return True

    def train(self, reading: Reading, source: str, stamp: str) -> list[Record]:
        """The same for a training line, of which a log has most."""
        records = []
        clock = seconds, _, utc = moment(stamp)
        if seconds is not None:
            self._utc = utc
            self._timed = True
        if reading.per_gpu and source and "world_size" not in self._arguments:
            records = self._size(source)
        process = self._process
        iteration = reading.iteration
        if iteration is None and (iteration := process.place(reading, source)) is None:
            return records
        if self._dead and not process.has_results_of(source) and self._dead.awaits(reading, iteration, source):
            return records
        news = process.is_news(reading, iteration, source)
        if news is None:
            process = self._next_attempt(process.ahead)
            news = process.is_news(reading, iteration, source)
        if not news:
            return records
        values, length_s = process.result(reading, iteration, clock, self._arguments)
        self._phase = "train"
        if catalog.VALIDATION_LOSS in values:
            loss = values.pop(catalog.VALIDATION_LOSS)
            if process.is_new_validation(loss):
                found = {catalog.ITERATION: iteration, catalog.VALIDATION_LOSS: loss}
                records.append(self._record("validation", values=found, phase="train", stamp_s=seconds))
        records.append(training_result(values, self.attempt, seconds, self._utc, length_s))
        return records

    def _next_attempt(self, ahead: Mapping[Metric, Number] | None = None) -> Process:
        """Another process, and what was counted ahead of its first line."""
        if self._process.results:
            self.attempt += 1
            self._dead = self._process
        self._process = Process(ahead)
        return self._process

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

    def _memory(self, reading: Reading, seconds: float | None) -> list[Record]:
        more = self._process.more_memory(reading)
        return [self._record("memory", values=more, stamp_s=seconds)] if more else []

    def _guard(self, reading: Reading, seconds: float | None) -> list[Record]:
        """A value that a guard found before the line that would have reported it; each rank says so."""
        if reading.iteration is None or reading.iteration == self._process.guarded or not reading.values:
            return []
        self._process.guarded = reading.iteration
        values = {catalog.ITERATION: reading.iteration, **reading.values}
        return [self._record("train", values=values, phase="train", stamp_s=seconds)]

    def _start(self, seconds: float | None) -> Record:
        self._arguments.clear()
        self._process.begin = 0
        return self._to("startup", seconds, "start")

    def _resume(self, reading: Reading, seconds: float | None) -> list[Record]:
        self._process.begin = reading.iteration
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
            self._process.begin = None
        self._phase = phase
        return self._record(kind, phase=phase, stamp_s=seconds)
