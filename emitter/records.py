"""What a training log says, as values: the language between readers and replay. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .catalog import PHASES, Metric

KINDS = (
    "run",
    "phase",
    "train",
    "validation",
    "checkpoint",
    "timers",
    "memory",
    "start",
    "resume",
    "end",
    "hang",
)
"""Settings of the run; a mere change of phase; results of training and validation; a checkpoint that is complete; how
long the parts of an iteration took; memory; a process that starts, goes on from a checkpoint, ends; a watchdog's word
that nothing moves."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one line says about the run. Absent is absent; a NaN is a value.

    Raises: ValueError if there is no such kind or phase.
    """

    kind: str
    """One of KINDS."""
    values: Mapping[Metric, int | float] = field(default_factory=dict)
    series: Mapping[Metric, Mapping[tuple[str, ...], int | float]] = field(default_factory=dict)
    """Values of metrics with attributes, by the values of these attributes in the catalog's order."""
    attempt: int = 0
    """Number of the process in this log, counted from 0."""
    phase: str | None = None
    """The phase that the run is in from here on, if the line tells."""
    stamp_s: float | None = None
    """When, by the log's own clock; only differences mean something, since most logs leave out the time zone."""
    utc: bool = False
    """Whether the log says the zone, so that the stamp is Unix time."""
    length_s: float | None = None
    """How long what is reported took; for logs without a clock."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"emitter.records: a kind is one of {', '.join(KINDS)} (got {self.kind!r}).")
        if self.phase is not None and self.phase not in PHASES:
            raise ValueError(f"emitter.records: a phase is one of {', '.join(PHASES)} (got {self.phase!r}).")


def training_result(
    values: Mapping[Metric, int | float], attempt: int, stamp_s: float | None, utc: bool, length_s: float | None
) -> Record:
    """A record of kind and phase `train`, made in a third of the time: a log has a million, and nothing to check."""
    record = object.__new__(Record)
    fields = {
        "kind": "train",
        "values": values,
        "series": {},
        "attempt": attempt,
        "phase": "train",
        "stamp_s": stamp_s,
        "utc": utc,
        "length_s": length_s,
    }
    object.__setattr__(record, "__dict__", fields)
    return record


@dataclass(frozen=True, kw_only=True)
class LineCounts:
    """What became of the physical lines of a log; each is counted once."""

    records: int = 0
    """Lines that results were read from."""
    recognized: int = 0
    """Lines that are known and report no result."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Lines that were skipped, by reason: `unknown`, `empty`, `cut`, `garbled`, `unplaced` for a result that
    does not tell its iteration."""

    @property
    def skipped(self) -> int:
        """Lines that nothing was read from."""
        return sum(self.reasons.values())

    @property
    def total(self) -> int:
        """All lines."""
        return self.records + self.recognized + self.skipped


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a reader made of a log."""

    format: str | None
    """Name of the family that the log was found to be of; None if it has no training line."""
    counts: LineCounts
    results: int
    """Training lines, each iteration of an attempt once."""
    attempts: int
    first_iteration: int | None
    last_iteration: int | None
    unread: tuple[str, ...]
    """Keys of training lines that nobody knows."""
    unlike: str | None
    """The first line that looks like a training line and is none, or is cut, garbled or without its iteration."""
    absent: Mapping[str, int]
    """Training lines that lack a value which others have, by its short name."""
