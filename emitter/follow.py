"""Follows the log of a run that is live: its records as they come, from where an earlier follow stopped.

What was there before is read first, quickly, and counts as past. After a restart it is read again as well, up to the
place that the state file names: that gives back all that a reader knows, and the file need only hold places.

A run has ended when its log says so. A log that falls silent leaves its run in the phase it was in, so that it looks
hung: whether the process that wrote it is alive cannot be known from here. A pipe that closes without such a word is a
process that is gone; follow then stops too, and the run looks vanished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from .log_run import Past
from .place import State, StateFile
from .readers import LogReader
from .records import Record
from .replay import Sink
from .rotation import Piece
from .tail import Source

POLL_S = 0.25
SLOWEST_POLL_S = 1.0
"""Time between two looks at a log that moves, and at one that does not."""

PROGRESS_S = 1.0
"""Time between two looks at how much of the past is left, for each costs a look at every file."""

SETTLE_S = 2.0
"""After so much silence a line is whole that might have gone on."""

NOTHING_YET_S = 30.0
"""Whoever follows what gives no result so long is told once: the path may be wrong, or the layout unknown."""

LINGER_S = 300.0
"""Silence after the end of a run until nobody waits for more: Megatron-LM evaluates and saves after it said the end."""

LAST_LOOK_S = 1.0
"""Longest time for what came until somebody said stop."""


class Follower:
    """Reads a source into sinks until the run has ended, the source is over or somebody says stop.

    `begin` makes the sinks once the past is known. `saved` is the state of an earlier follow of the same run, and
    `state_file` keeps the present one. `first_attempt` is the least number that the present attempt can have.
    `nothing_yet` is called once if no result has come after a while.
    """

    def __init__(
        self,
        source: Source,
        log: LogReader,
        begin: Callable[[Past], Sequence[Sink]],
        *,
        saved: State | None = None,
        state_file: StateFile | None = None,
        first_attempt: int = 0,
        linger_s: float = LINGER_S,
        progress: Callable[[float], None] = lambda left: None,
        nothing_yet: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._log = log
        self._make_sinks = begin
        self._saved = saved
        self._state_file = state_file
        self._first_attempt = max(first_attempt, saved.attempt if saved else 0)
        self._linger_s = linger_s
        self._progress = progress
        self._nothing_yet = nothing_yet
        self._past = Past()
        self._sinks: Sequence[Sink] | None = None
        self._labels: dict[str, bytes] = {}
        self._added_attempts = 0
        """Attempts that are older than what can be read."""
        self._attempt = 0
        self._settled = False
        self.ended = False
        """Whether the log said so since it is followed."""

    def run(self, wait: Callable[[float], object], stopped: Callable[[], bool], clock: Callable[[], float]) -> None:
        """Follow; returns when there is nothing more to wait for, or what is there when it is stopped is read."""
        begun_at = moved_at = clock()
        pause_s = POLL_S
        waiting = True
        while True:
            if self._take_all(stopped, clock):
                moved_at, pause_s = clock(), POLL_S
            silent_s = clock() - moved_at
            if silent_s >= SETTLE_S and not self._settled:
                self._settle()
            if waiting and clock() - begun_at >= NOTHING_YET_S:
                waiting = False
                if not self._log.summary.results:
                    self._nothing_yet()
            if stopped() or self._source.over or (self.ended and silent_s >= self._linger_s):
                break
            wait(pause_s)
            pause_s = min(2 * pause_s, SLOWEST_POLL_S)
        if self._sinks is not None:
            deadline = clock() + LAST_LOOK_S
            self._take_all(lambda: clock() >= deadline, clock)
        if self._source.over:
            self._tell(self._log.close())
        elif self._state_file is None:  # else the next follow tells what is not finished
            self._settle()

    def _take_all(self, stopped: Callable[[], bool], clock: Callable[[], float]) -> bool:
        """Take what is new; whether there was anything."""
        moved = False
        due = clock()
        for piece in self._source.read():
            if piece.past:
                for record in self._log.feed(self._labeled(piece)):
                    self._past.take(record)
                if clock() >= due:
                    self._progress(self._source.past_left)
                    due = clock() + PROGRESS_S
            else:
                self._begin()
                self._settled = False
                self._tell(self._log.feed(self._labeled(piece)))
            moved = True
            if stopped():
                break
        if not self._source.past_left:
            self._begin()
        if moved and self._sinks is not None:
            self._save(durable=True)
        return moved

    def _begin(self) -> None:
        """The past is over."""
        if self._sinks is not None:
            return
        if self._saved is None or self._saved.settled:
            for record in self._log.settle():
                self._past.take(record)
        self._added_attempts = max(0, self._first_attempt - self._past.attempt)
        self._attempt = self._past.attempt = self._past.attempt + self._added_attempts
        self.ended = self._saved is not None and self._past.phase == "ended"
        self._sinks = self._make_sinks(self._past)
        self._save(durable=True)

    def _tell(self, records: Iterable[Record]) -> None:
        told = False
        for record in records:
            self._attempt = record.attempt + self._added_attempts
            if record.phase is not None:
                self.ended = record.phase == "ended"
            for sink in self._sinks or ():
                sink(replace(record, attempt=self._attempt))
            told = True
        if told:
            self._save(durable=False)

    def _settle(self) -> None:
        self._settled = True
        self._tell(self._log.settle())

    def _save(self, *, durable: bool) -> None:
        if self._state_file is not None:
            positions = dict(self._source.positions)
            state = State(attempt=self._attempt, settled=self._settled, positions=positions)
            self._state_file.save(state, durable=durable)

    def _labeled(self, piece: Piece) -> bytes:
        """The lines with their file in front, as a launcher does it: readers tell sources apart by that."""
        if not piece.source:
            return piece.data
        label = self._labels.setdefault(piece.source, b"[log:%d]:" % len(self._labels))
        return b"".join(line if line.isspace() else label + line for line in piece.data.splitlines(keepends=True))
