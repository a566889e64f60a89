"""What became of the lines of a log, and what its training lines had: the numbers of a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .. import catalog
from ..catalog import Metric
from ..records import LineCounts, Record, Summary

SHAPES = 64
"""Combinations of values that are counted."""

UNREAD = 32
"""Unread keys that are named."""

NAMED = 200
"""Characters of a line that is named."""


class Account:
    """Counts each physical line once. Memory is constant in their number."""

    def __init__(self) -> None:
        self.records = self.recognized = self.unknown = self.empty = 0
        self._skipped: Counter[str] = Counter()
        self._unread: dict[str, None] = {}
        self._strange: str | None = None
        self._results = 0
        self._shapes: dict[tuple[Metric, ...], int] = {}
        """Which values the training lines have, and how many have those."""
        self._first: int | None = None
        self.last_iteration: int | None = None

    def skip(self, reason: str, lines: int) -> None:
        """Count lines of which nothing is known but why they were not read."""
        self._skipped[reason] += lines

    def count(self, lines: int, *, results: bool) -> None:
        """Count lines that are known, with a result or without."""
        if results:
            self.records += lines
        else:
            self.recognized += lines

    @property
    def is_looking(self) -> bool:
        """Whether no strange line was named yet."""
        return self._strange is None

    def name(self, text: str) -> None:
        """Keep a line that looks like a training line and is none, if it is the first one."""
        if self._strange is None:
            self._strange = text.strip()[:NAMED]

    def name_unread(self, keys: Iterable[str]) -> None:
        """Keep keys that nobody knows."""
        for key in keys:
            if len(self._unread) >= UNREAD:
                return
            self._unread[key] = None

    def note(self, records: Iterable[Record]) -> None:
        """Look at what is told: which iterations, with which values."""
        for record in records:
            if record.kind == "train":
                values = record.values
                shape = tuple(values)
                if shape in self._shapes:
                    self._shapes[shape] += 1
                elif len(self._shapes) < SHAPES:
                    self._shapes[shape] = 1
                self._results += 1
                self.last_iteration = int(values[catalog.ITERATION])
                if self._first is None:
                    self._first = self.last_iteration

    @property
    def counts(self) -> LineCounts:
        """What became of the lines so far; those that wait are not counted yet."""
        reasons = self._skipped + Counter(unknown=self.unknown, empty=self.empty)  # those that there are
        return LineCounts(records=self.records, recognized=self.recognized, reasons=dict(reasons))

    def summary(self, family: str | None, attempts: int) -> Summary:
        """All of it."""
        return Summary(
            format=family,
            counts=self.counts,
            results=self._results,
            attempts=attempts,
            first_iteration=self._first,
            last_iteration=self.last_iteration,
            unread=tuple(self._unread),
            unlike=self._strange,
            absent=self._absent(),
        )

    def _absent(self) -> dict[str, int]:
        present: Counter[str] = Counter()
        for metrics, times in self._shapes.items():
            present.update({metric.short: times for metric in metrics})
        total = sum(self._shapes.values())
        return {name: total - times for name, times in present.items() if times < total}
