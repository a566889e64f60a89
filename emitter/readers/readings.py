"""What one logical line says, before it has a place in the run's history.

Readings and scans are tuples: a frozen dataclass takes three times as long to make, and each line makes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..catalog import Metric

Number = int | float

EMPTY: Mapping[Any, Any] = MappingProxyType({})


class State(IntEnum):
    """How much of a line is there, since a line may have been wrapped or cut."""

    OPEN = 0
    """Only its beginning."""
    ENDED = 1
    """All that is needed if this is where the line ends; a cut line may look the same."""
    ENOUGH = 2
    """All that is needed; more may follow on the next physical line."""
    WHOLE = 3
    """All of it."""


class Reading(NamedTuple):
    """One statement of a log."""

    kind: str
    """A kind of record, or `settings` for arguments, `saving` for a checkpoint begun, `ahead` for values of the next
    training line, `guard` for a value that stopped the run before its line, `known` for nothing to report."""
    iteration: int | None = None
    values: Mapping[Metric, Number] = EMPTY
    series: Mapping[Metric, Mapping[tuple[str, ...], Number]] = EMPTY
    """Values of metrics with attributes, by the values of these attributes in the catalog's order."""
    settings: Mapping[str, int] = EMPTY
    """Arguments of the run by their names in Megatron-LM."""
    phase: str | None = None
    stamp: str = ""
    """The time that is printed in it, if there is one; else the one in front of the line counts."""
    per_gpu: Mapping[Metric, Number] = EMPTY
    """Values for one GPU of metrics that are for the whole job."""
    cumulative: Mapping[Metric, Number] = EMPTY
    """Totals since the start of the process of metrics that count what is new."""
    silent_nan: bool = False
    """Whether a loss that is missing here is a NaN."""
    rounded: bool = False
    """Whether the iteration is rounded, so that lines in a row have the same one."""


class Scan(NamedTuple):
    """What a layout finds in a text."""

    state: State
    readings: tuple[Reading, ...] = ()
    progress: int = 0
    """How much was found, in parts or characters: a next physical line that adds to it belongs to it."""
    begin: int = 0
    """Where in the text it begins."""
    done: tuple[Reading, ...] = ()
    """What was finished before it, on the same line."""
    trouble: str = ""
    """Why the text cannot be read, although the layout is recognized; a reason of skipped lines."""
    last_key: str = ""
    """The last key of a training line: a line without it is probably cut."""
    unread: tuple[str, ...] = ()
    """Keys that nobody knows, or whose value cannot be read."""
    strange: int = 0
    """How many values are no numbers, nor numbers with a unit behind an unknown key."""


class Layout(Protocol):
    """A form of line."""

    @property
    def words(self) -> tuple[str, ...]:
        """One of these, without a digit, is in every such line: to save time, since most lines of a log have none."""

    @property
    def joint(self) -> str:
        """What is between two physical lines of it."""

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """What is found in a text; None if it is something else. `ends` are the last keys seen so far."""
