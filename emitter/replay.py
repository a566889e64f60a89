"""A log as a live run: its records in its own rhythm, or faster, into metrics or JSON lines.

The clock is an argument, and so is the sleep: nothing here knows what time it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, TextIO

from . import catalog
from .errors import EmitterError
from .log_run import LoggedRun
from .readers import LogReader
from .records import Record

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

SLICE_S = 2.0
"""Longest sleep at a stretch, so that whoever watches sees that something goes on."""

Sink = Callable[[Record], None]


def records(name: str, pieces: Iterable[bytes], log: LogReader) -> Iterator[Record]:
    """Records of a log, of which it is known that there is a training line.

    Raises: EmitterError if there is none, at once and not at the first record.
    """
    start = b""
    head: list[Record] = []
    rest = iter(pieces)
    for piece in rest:
        start += piece[: 1000 - len(start)]
        head += log.feed(piece)
        if any(record.kind == "train" for record in head):
            return chain(head, (record for piece in rest for record in log.feed(piece)), _last(log))
    head += log.close()
    if any(record.kind == "train" for record in head):
        return iter(head)
    raise EmitterError(f"{name}: {_useless(start, log.counts.total)}")


def _last(log: LogReader) -> Iterator[Record]:
    yield from log.close()


def _useless(start: bytes, lines: int) -> str:
    if not start:
        return "a log has lines (got an empty file). Is the run's output somewhere else?"
    if b"\0" in start or "\ufffd" in start[:-3].decode("utf-8", "replace"):
        return "a log is text (got binary data). Decompress or convert it."
    return f"a log has training lines of a known layout (got {lines} lines without one). Other layouts cannot be read."


def timeline(of: Iterable[Record]) -> Iterator[tuple[float, Record]]:
    """Each record with its time in seconds since the first one.

    By the log's clock where it has one, else by the length of what is reported. Where a clock goes back,
    a day's change or another attempt, and where another one takes over, the time goes on.
    """
    now = 0.0
    begun = False
    origin: float | None = None
    utc = False
    for record in of:
        if record.stamp_s is not None:
            if origin is None or record.utc is not utc or record.stamp_s - origin < now:
                origin, utc = record.stamp_s - now, record.utc
            now = record.stamp_s - origin
        elif record.length_s is not None and begun:
            now += record.length_s
        begun = begun or record.stamp_s is not None or record.kind == "train"
        yield now, record


class LogTime:
    """A clock that stands where a replay is in its log, as Unix time with the first record at the beginning."""

    def __init__(self, begin_s: float) -> None:
        self._begin_s = begin_s
        self.seconds = 0.0
        """Since the first record."""

    def __call__(self) -> float:
        """Unix time in seconds."""
        return self._begin_s + self.seconds


def replay(
    timed: Iterable[tuple[float, Record]],
    sinks: Iterable[Sink],
    *,
    speed: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    log_time: LogTime,
    progress: Callable[[float, Record | None], None] = lambda seconds, record: None,
) -> None:
    """Hand every record to the sinks when it is due: `speed` times faster than the run was; at infinity at once.

    `progress` is told the time in the log and the last training record, every SLICE_S or more often.
    """
    sinks = tuple(sinks)
    last: Record | None = None
    begin = clock()
    for seconds, record in timed:
        while (left := begin + seconds / speed - clock()) > 0:
            log_time.seconds = seconds - left * speed
            progress(log_time.seconds, last)
            sleep(min(left, SLICE_S))
        log_time.seconds = seconds
        for sink in sinks:
            sink(record)
        if record.kind == "train":
            last = record
            progress(seconds, last)


def metrics(meter: Meter, clock: Callable[[], float], now: Callable[[], float] | None = None) -> Sink:
    """A sink that records into a meter, as a run that starts now.

    `clock` is the time of the log; `now`, where that runs at another speed, is the time of whoever watches.
    """
    return LoggedRun(meter, clock, now=now)


def jsonl(out: TextIO, clock: Callable[[], float] | None = None) -> Sink:
    """A sink that writes one JSON object for each record that says more than a phase or a setting.

    With a `clock`, each says when, as Unix time.
    """

    def sink(record: Record) -> None:
        if record.kind in ("run", "phase"):
            return
        values: dict[str, object] = {metric.short: _plain(value) for metric, value in record.values.items()}
        for metric, series in record.series.items():
            values[metric.short] = [
                {**dict(zip(metric.attributes, key, strict=True)), "value": _plain(value)}
                for key, value in series.items()
            ]
        when = {} if clock is None else {"time": clock()}
        attempt = {catalog.RUN_ATTEMPT.short: record.attempt}
        out.write(json.dumps({"kind": record.kind, **when, **attempt, **values}) + "\n")
        out.flush()

    return sink


def _plain(value: int | float) -> int | float | str:
    """JSON has no NaN and no infinity: they are spelt as Prometheus spells them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
