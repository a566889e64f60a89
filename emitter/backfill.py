"""A log as history: the samples that a Prometheus would have, had it scraped the run while it was live.

The records go through what a live replay does, with a clock of their own times; between two of them the run is scraped.
Nothing here knows what time it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from math import ceil
from typing import TYPE_CHECKING

from .errors import EmitterError
from .instruments import prepare
from .log_run import LoggedRun
from .openmetrics import Samples
from .records import Record
from .replay import timeline

if TYPE_CHECKING:
    from .virtual import VirtualMeter

ENDED_SCRAPES = 4
"""Scrapes of a run that has ended, as many as a replay lingers for."""

HELD_S = 86_400.0
"""A process that says nothing for a day is gone; and a clock that is set to another year makes no year of samples."""

STARTUP_S = 600.0
"""A large model is loaded and compiled in ten minutes; what is more between two processes is a time without one."""

SKEW_S = 60.0
"""A stamp that is so little before another is a line that came late; one further back is another clock."""

YEARS_S = 0.0, 4_133_980_800.0
"""1970 to 2100: what is outside is no time of a run, whatever a line or an option says."""

_Timed = tuple[float, Record]


class Clock:
    """The time of a log that is being read, for whoever asks."""

    now_s = 0.0

    def __call__(self) -> float:
        """Unix time in seconds."""
        return self.now_s


class Stamps:
    """Printed times as Unix time. Zone None is this machine's; times that name their own are of that."""

    def __init__(self, zone: tzinfo | None) -> None:
        self.back = 0
        """How often they went back; `timed` goes on from there, later than printed."""
        self.assumed = False
        """Whether the zone was needed."""
        self._zone = zone
        self._latest = float("-inf")

    def unix(self, stamp_s: float, *, utc: bool = False) -> float:
        """Unix time of a record's stamp, in the order of the log: the hour that a clock has twice is told apart."""
        self.assumed = self.assumed or not utc
        moment = datetime.fromtimestamp(stamp_s, timezone.utc).replace(tzinfo=timezone.utc if utc else self._zone)
        unix = moment.timestamp()
        if unix < self._latest - SKEW_S:
            unix = max(unix, moment.replace(fold=1).timestamp())
        if unix < self._latest - SKEW_S:
            self.back += 1
            self._latest = unix
        self._latest = max(self._latest, unix)
        return self._latest


def begin(records: Iterable[Record], zone: tzinfo | None, end_s: float) -> tuple[float, bool]:
    """When a log's first record was, and whether the log says so itself; else it follows from the end of the log."""
    seconds = 0.0
    for seconds, record in timeline(records):
        if record.stamp_s is not None:
            return Stamps(zone).unix(record.stamp_s, utc=record.utc) - seconds, True
    return end_s - seconds, False


def timed(records: Iterable[Record], stamps: Stamps, begin_s: float) -> Iterator[_Timed]:
    """Each record with its Unix time; where a clock goes back, time goes on.

    What another process prints before its first time is put STARTUP_S before that, at most.

    Raises: EmitterError where a time cannot be one.
    """
    told = (
        record
        if record.stamp_s is None
        else replace(record, stamp_s=stamps.unix(record.stamp_s, utc=record.utc), utc=True)
        for record in records
    )
    attempt: int | None = None
    waiting: list[_Timed] = []
    for seconds, record in timeline(told):
        at_s = begin_s + seconds
        if not YEARS_S[0] <= at_s < YEARS_S[1]:
            raise EmitterError(
                f"backfill: a log's times are from 1970 to 2100 (got {at_s:g} s since 1970). "
                "Look for a step that took too long or, in a log without times, give another --end."
            )
        if record.stamp_s is None and record.kind != "train" and attempt not in (None, record.attempt):
            waiting.append((at_s, record))
            continue
        yield from ((max(early_s, at_s - STARTUP_S), early) for early_s, early in waiting)
        waiting.clear()
        attempt = record.attempt
        yield at_s, record
    yield from waiting


def _with_next(of: Iterable[_Timed]) -> Iterator[tuple[_Timed, _Timed | None]]:
    """Each record and the one after it."""
    before: _Timed | None = None
    for record in of:
        if before is not None:
            yield before, record
        before = record
    if before is not None:
        yield before, None


class History:
    """Scrapes of one run that is over, one for each multiple of the interval.

    `labels` are what a scrape adds to each series. With `length_ms` the samples come in pieces that begin at its
    multiples, else in one.
    """

    def __init__(self, *, interval_ms: int, labels: Mapping[str, str], length_ms: int | None = None) -> None:
        self.samples = Samples(interval_ms, labels)
        self.first_s: float | None = None
        self.last_s: float | None = None
        """Times of the first and of the last scrape so far."""
        self._interval_ms = interval_ms
        self._length_ms = length_ms

    def pieces(self, of: Iterable[_Timed]) -> Iterator[Iterator[str]]:
        """Text of each piece; to be read before the next one is asked for.

        Raises: EmitterError where the OpenTelemetry API is missing.
        """
        try:
            from .virtual import VirtualMeter
        except ImportError as error:
            raise EmitterError(f"backfill: samples need a library (got {error}). Install opentelemetry-api.") from error
        meter = VirtualMeter()
        prepare(meter)
        last: int | None = None
        for scrape, told in self._scrapes(meter, of):
            if last is not None:
                if scrape > last + 1:
                    self.samples.pause(last + 1)
                if self._piece(scrape) != self._piece(last):
                    yield self.samples.write(last + 1)
            self.samples.take(scrape, meter.collect(time_only=not told), complete=told)
            last = scrape
            self.last_s = self._time_s(scrape)
        if last is not None:
            yield self.samples.write(last + 1)

    def _scrapes(self, meter: VirtualMeter, of: Iterable[_Timed]) -> Iterator[tuple[int, bool]]:
        """Number of each scrape, and whether the log has told something since the last; the meter lives at its time."""
        clock = Clock()
        run: LoggedRun | None = None
        phase: str | None = None
        for (at_s, record), after in _with_next(of):
            clock.now_s = at_s
            if run is None:
                run = LoggedRun(meter, clock)
                scrape = self._from(at_s) - 1  # once before anything happens, so that counters rise from 0
                self.first_s = self._time_s(scrape)
                yield scrape, True
            run(record)
            told = True
            phase = record.phase or phase
            for scrape in range(self._from(at_s), self._gone(at_s, phase == "ended", record, after)):
                clock.now_s = self._time_s(scrape)
                yield scrape, told
                told = False
            if after and after[1].attempt != record.attempt:
                phase = None

    def _gone(self, at_s: float, ended: bool, record: Record, after: _Timed | None) -> int:
        """Number of the first scrape after a record that finds nobody, or the next record.

        A process of which no more is heard before another one's first word was gone after its last.
        """
        if ended:
            gone = self._from(at_s) + ENDED_SCRAPES
        elif after is None or after[1].attempt != record.attempt:
            gone = self._from(at_s) + 1
        else:
            gone = self._from(at_s + HELD_S)
        return gone if after is None else min(gone, self._from(after[0]))

    def _from(self, at_s: float) -> int:
        """Number of the first scrape that is not before a time."""
        return ceil(at_s * 1000 / self._interval_ms)

    def _time_s(self, scrape: int) -> float:
        return scrape * self._interval_ms / 1000

    def _piece(self, scrape: int) -> int:
        return scrape * self._interval_ms // self._length_ms if self._length_ms else 0
