"""Samples of many scrapes as OpenMetrics text. Standard library only.

Series are spelt as our scrape endpoint spells them. What a scrape finds unchanged is not kept again: a point is a list
of changes, and its text between two changes is one join. The samples of a family stand together, so those of a run are
complete when the run is over; until then the changes wait on disk.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from .catalog import Kind, Metric
from .spool import Spool

if TYPE_CHECKING:
    from .virtual import Labels, Point, Values

_SUFFIXES = {"ms": "_milliseconds", "s": "_seconds", "By": "_bytes"}
"""What a unit adds to a name."""

_STAMPS = 4096
"""Time stamps that are made at once."""

_STAMP_BLOCKS = 64
"""How often that is kept for the next series: 45 days of scrapes at every 15 s, in 18 MB."""

_IN_MEMORY = 256
"""Changes of a point that wait in memory, at most."""

_STAMP = "\0"
"""Holds the place of a time stamp; no label has it, since it is no text."""

END = "# EOF\n"


def family(metric: Metric) -> str:
    """Name of a metric's family: that of its series, without `_total`, `_bucket`, `_count` and `_sum`."""
    return metric.name.replace(".", "_") + _SUFFIXES.get(metric.otel_unit, "")


class Samples:
    """What the scrapes of one target found. A scrape goes by its number, which is its time / the interval."""

    def __init__(self, interval_ms: int, labels: Mapping[str, str]) -> None:
        self.count = 0
        """Samples that were written."""
        self._interval_ms = interval_ms
        self._labels = tuple(labels.items())
        self._columns: dict[tuple[str, Labels], _Column] = {}
        self._families: dict[str, list[_Column]] = {}
        self._spool = Spool()

    @property
    def series(self) -> int:
        """Series that were ever seen."""
        return sum(len(column.heads) for column in self._columns.values())

    def take(self, scrape: int, points: Iterable[Point], *, complete: bool) -> None:
        """Keep what a scrape found. What it leaves out is gone if it is `complete`, else as before."""
        for metric, labels, values in points:
            column = self._columns.get((metric.name, labels)) or self._new(metric, labels)
            column.seen = scrape
            if column.values != values:
                column.change(scrape, values)
        if complete:
            for column in self._columns.values():
                if column.seen != scrape and column.values is not None:
                    column.change(scrape, None)

    def _new(self, metric: Metric, labels: Labels) -> _Column:
        column = _Column(metric, _heads(metric, (*labels, *self._labels)), self._spool)
        self._columns[metric.name, labels] = column
        self._families.setdefault(metric.name, []).append(column)
        return column

    def pause(self, scrape: int) -> None:
        """Nobody is there to be scraped, from this one on until a complete one."""
        self.take(scrape, (), complete=True)

    def write(self, until: int) -> Iterator[str]:
        """Text of what came before a scrape, in pieces, and forget it; nothing if there is nothing."""
        wrote = False
        for columns in self._families.values():
            began = False
            for column in columns:
                for first, end, values in column.runs(until):
                    if not began:
                        yield f"# TYPE {family(column.metric)} {column.metric.kind.value}\n"
                        began = wrote = True
                    self.count += len(column.heads) * (end - first)
                    yield from self._text(column.heads, values, first, end)
        if wrote:
            yield END
        self._spool.clear()

    def close(self) -> None:
        """Forget all that was not written."""
        self._spool.clear()

    def _text(self, heads: Sequence[str], values: Values, first: int, end: int) -> Iterator[str]:
        """The lines of one point from a scrape to before another; a histogram's go together, scrape by scrape."""
        lines = "".join([f"{head}{value!r} {_STAMP}\n" for head, value in zip(heads, values, strict=True)])
        while first < end:
            block, skip = divmod(first, _STAMPS)
            stamps = _stamps(block, self._interval_ms)[skip : skip + end - first]
            if len(heads) == 1:
                before, after = lines.split(_STAMP)
                yield before + (after + before).join(stamps) + after
            else:
                yield "".join([lines.replace(_STAMP, stamp) for stamp in stamps])
            first += len(stamps)


class _Column:
    """One point of one metric over time."""

    def __init__(self, metric: Metric, heads: tuple[str, ...], spool: Spool) -> None:
        self.metric = metric
        self.heads = heads
        """Name and labels of each of its series."""
        self.seen = -1
        """The last scrape that found it."""
        self.values: Values | None = None
        """What that one found; None if it is gone."""
        self._changes: list[tuple[int, Values | None]] = []
        self._spool = spool
        self._spooled = array("Q")
        """Where the changes before those are."""

    def change(self, scrape: int, values: Values | None) -> None:
        """Have these values, or none, from a scrape on."""
        self.values = values
        self._changes.append((scrape, values))
        if len(self._changes) == _IN_MEMORY:
            self._spooled.append(self._spool.put(self._changes))
            self._changes = []

    def runs(self, until: int) -> Iterator[tuple[int, int, Values]]:
        """Each first scrape and the one after the last with the same values, before `until`; then forget them."""
        spooled = (change for place in self._spooled for change in self._spool.get(place))
        for (first, values), (end, _) in pairwise(chain(spooled, self._changes, [(until, None)])):
            if values is not None and first < end:
                yield first, end, values
        self._spooled = array("Q")
        self._changes = [] if self.values is None else [(until, self.values)]


def _heads(metric: Metric, labels: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    name = family(metric)
    if metric.kind is Kind.GAUGE:
        return (_head(name, labels),)
    if metric.kind is Kind.COUNTER:
        return (_head(f"{name}_total", labels),)
    bounds = [*map(_bound, metric.bounds), "+Inf"]
    buckets = [_head(f"{name}_bucket", (("le", bound), *labels)) for bound in bounds]
    return (*buckets, _head(f"{name}_count", labels), _head(f"{name}_sum", labels))


def _head(name: str, labels: Iterable[tuple[str, str]]) -> str:
    pairs = ",".join([f'{label}="{_escaped(value)}"' for label, value in labels])
    return f"{name}{{{pairs}}} "


def _bound(number: float) -> str:
    """As OpenMetrics has it and Prometheus 3 stores it, whatever it was scraped as."""
    text = f"{number:g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace(_STAMP, "")


@lru_cache(maxsize=_STAMP_BLOCKS)
def _stamps(block: int, interval_ms: int) -> list[str]:
    """Times of so many scrapes."""
    scrapes = range(block * _STAMPS, (block + 1) * _STAMPS)
    if interval_ms % 1000 == 0:  # nearly always, and twice as fast
        return [str(scrape * (interval_ms // 1000)) for scrape in scrapes]
    return [_seconds(scrape * interval_ms) for scrape in scrapes]


def _seconds(milliseconds: int) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds}.{rest:03}" if rest else str(seconds)
