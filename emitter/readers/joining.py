"""Physical lines that belong together: what waits for the next one, and whether that goes on with it."""

from __future__ import annotations

from typing import NamedTuple

from .lines import Line
from .readings import Layout, Scan, State
from .table import TrainingLine


class Waiting(NamedTuple):
    """A text that is not finished."""

    line: Line
    """With the text of all its physical lines so far."""
    layout: Layout
    scan: Scan
    lines: int
    """How many they are."""
    since: int
    """Number of the last one."""
    raw: bytes
    """The first one."""


Found = tuple[Layout, Scan]


def is_part(source: str, other: str) -> bool:
    """Whether a source may be the other one, told by its first prefixes or by none."""
    return not source or f"{other} ".startswith(f"{source} ")


def alike(one: Layout, other: Layout) -> bool:
    """Whether it is the same layout; of which family a training line is may only show later."""
    return one is other or (isinstance(one, TrainingLine) and isinstance(other, TrainingLine))


def continues(now: Scan, before: Scan) -> bool:
    """Whether a text with one line more holds more."""
    if now.trouble == "garbled" or now.strange > before.strange or len(now.done) < len(before.done):
        return False
    if len(now.done) > len(before.done):
        return True
    if before.state >= State.ENOUGH > now.state:
        return False
    return now.progress > before.progress or now.state > before.state


def has_time(scan: Scan, line: Line) -> bool:
    """Whether a line's time is known, or nothing needs it."""
    return bool(line.stamp) or not scan.readings or bool(scan.readings[-1].stamp)


def begins_in(before: Line, together: Line, scan: Scan) -> bool:
    """Whether the line before has a part of it, or of the time in front of it."""
    ahead = together.text[: scan.begin].strip(" []")
    return scan.begin < len(before.text) or ahead in ("", *(reading.stamp for reading in scan.readings))


def is_better(now: Scan, alone: Found | None, before: Line) -> bool:
    """Whether what began on the line before is more than the line alone: it has the head, or the time."""
    if alone is None:
        return now.progress > 0 and now.trouble != "garbled"
    stamped = before.stamp or any(reading.stamp for reading in now.readings)
    return now.progress >= alone[1].progress and bool(stamped)
