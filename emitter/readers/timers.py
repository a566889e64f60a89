"""Megatron-LM's timers as it prints them: on a line; as a block of minimum and maximum, of maximum, of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .. import catalog
from ..catalog import Metric
from ..timer_table import CANONICAL
from .readings import Number, Reading, Scan, State

DURATIONS: dict[str, Metric] = {
    "save-checkpoint": catalog.CHECKPOINT_SAVE_DURATION,
    "load-checkpoint": catalog.CHECKPOINT_LOAD_DURATION,
    "evaluate": catalog.EVALUATION_DURATION,
}
"""Timers of what happens now and then, which have a metric of their own; the slowest rank counts."""

LONGEST_ROW = 256
"""Characters of a line of a block."""

_LINE = re.compile(r"time \(ms\)(?= \||\|?\s*$)", re.ASCII)
_PAIR = re.compile(r"\|\s*([A-Za-z][\w /.-]*?): *(\d+(?:\.\d*)?)(?=\s*(?:\||$))", re.ASCII)
_HEADER = re.compile(r"^(?:\(min, max\) |max )?times? across ranks \(ms\):?\s*$", re.ASCII)
_MIN_MAX = re.compile(r"^\s+([A-Za-z][\w /.-]*?) ?\.*: \((\d+(?:\.\d*)?), (\d+(?:\.\d*)?)\)$", re.ASCII)
_MAX = re.compile(r"^\s+([A-Za-z][\w /.-]*?) ?\.*: (\d+(?:\.\d*)?)$", re.ASCII)
_NAME = re.compile(r"^\s+([A-Za-z][\w /-]*):$", re.ASCII)
_BEGINNING = re.compile(r"^\s+(?:[A-Za-z][\w/.-]*)?(?: ?\.*:?[ (\d.,]*)?$", re.ASCII)
_RANK = re.compile(r"^\s+rank +\d+: (\d+(?:\.\d*)?)$", re.ASCII)

_Times = dict[str, list[float]]
"""Milliseconds of a timer: one of a single rank, or fastest and slowest, or those of all ranks."""


@dataclass(frozen=True, kw_only=True)
class TimersLine:
    """`time (ms) | forward-compute: 1.0 | optimizer: 2.0`: the times of the rank that prints."""

    words: tuple[str, ...] = ("time (ms)",)
    joint: str = ""

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The timers of a line; one rank is the fastest and the slowest of those that were seen."""
        head = _LINE.search(text)
        if head is None:
            return None
        pairs = list(_PAIR.finditer(text, head.end()))
        times: _Times = {match[1]: [float(match[2])] for match in pairs}
        return Scan(
            state=State.ENOUGH,
            readings=(_reading(times.items(), only_max=False),),
            progress=pairs[-1].end() if pairs else 0,
            begin=head.start(),
        )


@dataclass(frozen=True, kw_only=True)
class TimersBlock:
    """A heading, then a line for each timer, or for each timer and rank."""

    words: tuple[str, ...] = ("across ranks (ms)",)
    joint: str = "\n"

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The timers of a block as far as it is a block."""
        heading, *lines = text.split("\n")
        if not _HEADER.match(heading):
            return None
        times: _Times = {}
        progress = 1
        name = None
        wrapped = ""
        for printed in lines:
            line, wrapped = wrapped + printed, ""
            if len(line) > LONGEST_ROW:
                break
            if name is not None and (match := _RANK.match(line)):
                times.setdefault(name, []).append(float(match[1]))
            elif match := _MIN_MAX.match(line) or _MAX.match(line):
                times[match[1]] = [float(value) for value in match.groups()[1:]]
            elif match := _NAME.match(line):
                name = match[1]
            elif _BEGINNING.match(line) or (line == ":" and not heading.endswith(":")):
                wrapped = line.removeprefix(":")
            else:
                break
            progress += 1
        return Scan(
            state=State.ENOUGH,
            readings=(_reading(times.items(), only_max=heading.startswith("max ")),),
            progress=progress,
        )


def _reading(times: Iterable[tuple[str, list[float]]], *, only_max: bool) -> Reading:
    values: dict[Metric, Number] = {}
    series: dict[tuple[str, ...], Number] = {}
    for name, milliseconds in times:
        if not milliseconds:
            continue
        if name in DURATIONS:
            values[DURATIONS[name]] = max(milliseconds) / 1000
            continue
        phase = CANONICAL.get(name.replace(" ", "-"), name)
        if not only_max:
            series[phase, "min"] = min(milliseconds) / 1000
        series[phase, "max"] = max(milliseconds) / 1000
    if not values and not series:
        return Reading(kind="known")
    return Reading(kind="timers", values=values, series={catalog.TIMER_DURATION: series} if series else {})
