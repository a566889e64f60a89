"""What a training log says, as values: the language between readers and replay. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .catalog import PHASES, Metric

KINDS = ("run", "phase", "train", "validation")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one line says about the run. Absent is absent; a NaN is a value.

    Raises: ValueError if there is no such kind or phase.
    """

    kind: str
    """`run` for its settings, `phase` for a mere change of phase, `train` and `validation` for results."""
    values: Mapping[Metric, int | float] = field(default_factory=dict)
    phase: str | None = None
    """The phase that the run is in from here on, if the line tells."""
    stamp_s: float | None = None
    """When, by the log's own clock; only differences mean something, since logs leave out the time zone."""
    length_s: float | None = None
    """How long what is reported took; for logs without a clock."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"emitter.records: a kind is one of {', '.join(KINDS)} (got {self.kind!r}).")
        if self.phase is not None and self.phase not in PHASES:
            raise ValueError(f"emitter.records: a phase is one of {', '.join(PHASES)} (got {self.phase!r}).")


@dataclass(frozen=True, kw_only=True)
class LineCounts:
    """What became of the physical lines of a log; each is counted once."""

    records: int = 0
    """Lines that results were read from."""
    recognized: int = 0
    """Lines that are known and report no result."""
    skipped: int = 0

    @property
    def total(self) -> int:
        """All lines."""
        return self.records + self.recognized + self.skipped
