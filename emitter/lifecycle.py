"""The life of a run as metrics: its phases, steps, checkpoints, evaluations, attempt and end, and where its time goes.

The clock is an argument: a training loop lives by the wall clock, a log by its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from statistics import median
from threading import RLock
from typing import TYPE_CHECKING, SupportsFloat

from . import catalog
from .forks import tell_in_child
from .instruments import before_collection, record

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

STALL_STEPS = 3
"""A step that takes as long as three usual ones is not just slow: what is beyond is stalled time."""

STALL_FLOOR_S = 60.0
"""Garbage collection and retried collectives hold a fast run for a while."""

USUAL_STEPS = 50
"""The usual length of a step is the median of so many."""


class Lifecycle:
    """What a run is doing, told to a meter. Safe to call from several threads.

    `clock` gives Unix time in seconds and may be any; it is also read whenever a reader collects, so that a hang or
    a long checkpoint is booked while it lasts. An `attempt` after the first books its start-up as restart.
    """

    def __init__(self, meter: Meter | None, clock: Callable[[], float], *, attempt: int = 0) -> None:
        self._meter = meter
        self._clock = clock
        self._attempt = attempt
        self._lock = RLock()
        tell_in_child(self)
        self.phase = "startup"
        now = clock()
        self._booked_until = now
        self._step_since: float | None = None
        """When the present stretch of training began; None outside of it."""
        self._step_before_s = 0.0
        """Length of the present step before that: an evaluation in between is no part of it."""
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        self._stall_s = inf
        for bucket in catalog.RUN_TIME_BUCKETS:
            record(meter, catalog.RUN_TIME, 0, {"bucket": bucket})
        record(meter, catalog.CHECKPOINT_FAILURES, 0)
        self._show_start(now)
        if meter is not None:
            before_collection(meter, self.book)

    def restart(self, attempt: int) -> None:
        """Another process of the run starts up now; for whoever watches from outside."""
        with self._lock:
            now = self._book()
            self._attempt = attempt
            self.phase = "startup"
            self._step_since = None
            self._step_before_s = 0.0
            self._show_start(now)

    def after_fork(self) -> None:
        """In a forked child: wait for no thread of the parent."""
        self._lock = RLock()

    def enter(self, phase: str) -> None:
        """Be in another phase from now on; after `ended` there is none.

        Raises: ValueError if there is no such phase.
        """
        if phase not in catalog.PHASES:
            raise ValueError(
                f"emitter.lifecycle: a phase is one of {', '.join(catalog.PHASES)} (got {phase!r}). Choose one of them."
            )
        with self._lock:
            if phase == self.phase or self.phase == "ended":
                return
            now = self._book()
            if self._step_since is not None:
                self._step_before_s += now - self._step_since
            self._step_since = now if phase == "train" else None
            self.phase = phase
            self._show_phase()

    def step(self, steps: int = 1, seconds: SupportsFloat | None = None) -> float | None:
        """So many steps are done; how long one took, if that is known.

        `seconds` is the length of one step, else it is the time since the last step or the start of training,
        without evaluations and checkpoints. The first step without it is part of the start-up.
        """
        with self._lock:
            now = self._book()
            measured = None
            if self._step_since is not None:
                measured = (self._step_before_s + now - self._step_since) / max(steps, 1)
            self.enter("train")
            self._step_since = now
            self._step_before_s = 0.0
            length = _length(seconds, measured)
            if length is None or self.phase == "ended":
                return None
            self._usual.append(length * steps)
            self._stall_s = max(STALL_STEPS * median(self._usual), STALL_FLOOR_S)
        record(self._meter, catalog.STEP_DURATION, length * 1000)
        return length

    @contextmanager
    def during(self, phase: str) -> Iterator[Callable[[], float]]:
        """In a phase for as long as the block lasts, then in the one before; yields the seconds since it began."""
        before = self.phase
        begin = self._clock()
        self.enter(phase)
        try:
            yield lambda: max(self._clock() - begin, 0.0)
        finally:
            if self.phase == phase:  # else training has begun beside it
                self.enter(before)

    def evaluated(self, seconds: float | None = None, loss: SupportsFloat | None = None) -> None:
        """An evaluation is done."""
        record(self._meter, catalog.EVALUATION_DURATION, seconds)
        record(self._meter, catalog.VALIDATION_LOSS, loss)

    def checkpoint_saved(self, iteration: int | None = None, seconds: float | None = None) -> None:
        """A checkpoint is complete: work before this moment cannot be lost any more."""
        record(self._meter, catalog.CHECKPOINT_SAVE_DURATION, seconds)
        record(self._meter, catalog.CHECKPOINT_LAST_SUCCESS_TIME, self._clock())
        record(self._meter, catalog.CHECKPOINT_LAST_ITERATION, iteration)

    def checkpoint_failed(self) -> None:
        """A checkpoint could not be saved."""
        record(self._meter, catalog.CHECKPOINT_FAILURES, 1)

    def checkpoint_loaded(self, seconds: float | None = None) -> None:
        """A checkpoint has been read."""
        record(self._meter, catalog.CHECKPOINT_LOAD_DURATION, seconds)

    def end(self) -> None:
        """The run is over."""
        self.enter("ended")

    def book(self) -> None:
        """Book the time until now; what is just being booked elsewhere is not waited for.

        A reader asks. On SIGTERM it does so for a loop that was interrupted, maybe with the lock in its hands.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._book()
            finally:
                self._lock.release()

    def _book(self) -> float:
        now = max(self._clock(), self._booked_until)
        since, self._booked_until = self._booked_until, now
        if now == since:  # every instrument asks, and a log's clock stands still meanwhile
            return now
        if self.phase == "train":
            begin = now if self._step_since is None else self._step_since - self._step_before_s
            stalled_from = min(max(begin + self._stall_s, since), now)
            self._add("productive", stalled_from - since)
            self._add("stalled", now - stalled_from)
        elif self.phase != "ended":
            restarting = self.phase == "startup" and self._attempt > 0
            self._add("restart" if restarting else self.phase, now - since)
        return now

    def _add(self, bucket: str, seconds: float) -> None:
        record(self._meter, catalog.RUN_TIME, seconds, {"bucket": bucket})

    def _show_start(self, now: float) -> None:
        record(self._meter, catalog.RUN_START_TIME, now)
        record(self._meter, catalog.RUN_ATTEMPT, self._attempt)
        self._show_phase()

    def _show_phase(self) -> None:
        for name in catalog.PHASES:
            record(self._meter, catalog.RUN_PHASE, int(name == self.phase), {"phase": name})


def _length(given: SupportsFloat | None, measured: float | None) -> float | None:
    """The given length of a step if it is one, else the measured one."""
    if given is not None:
        with suppress(Exception):  # a tensor's float() may raise anything
            length = float(given)
            if 0 <= length < inf:
                return length
    return measured
