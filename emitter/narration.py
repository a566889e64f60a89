"""What a command says on standard error to the person who started it: how far it is, and what became of a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from . import catalog
from .records import Record, Summary

PROGRESS_S = 3.0
"""Time between two lines of progress on a terminal."""


def say(message: str, verb: str) -> None:
    """Say a sentence in the name of a verb; its full stop is added, unless it is a question."""
    end = "" if message.endswith("?") else "."
    print(f"{verb}: {message}{end}", file=sys.stderr, flush=True)


def sum_up(summary: Summary, verb: str) -> None:
    """Say what became of a log."""
    for line in summary_lines(summary):
        say(line, verb)


def summary_lines(summary: Summary) -> list[str]:
    """What became of a log, for a person."""
    counts = summary.counts
    lines = [
        f"{counts.total} lines read: {counts.records} with results, {counts.recognized} recognized, "
        f"{counts.skipped} skipped"
    ]
    if counts.skipped:
        lines[0] += (
            f" ({', '.join(f'{number} {reason}' for reason, number in sorted(counts.reasons.items()) if number)})"
        )
    if summary.results:
        lines.append(
            f"{summary.format}: {summary.results} training lines, iterations {summary.first_iteration} to "
            f"{summary.last_iteration}, {_plural(summary.attempts, 'attempt')}"
        )
    if summary.absent:
        absent = (f"{name} ({number})" for name, number in sorted(summary.absent.items()))
        lines.append(f"training lines without a value that others have: {', '.join(absent)}")
    if summary.unread:
        lines.append(f"keys that nobody knows: {', '.join(summary.unread)}")
    if summary.unlike:
        lines.append(f"the first line that was not read and looks like a training line: {summary.unlike!r}")
    return lines


def nothing_yet(summary: Summary) -> str:
    """What to say while a log has no results."""
    lines = summary.counts.total
    if not lines:
        return "nothing to read yet"
    strange = f"; the first that looks like one: {summary.unlike!r}" if summary.unlike else ""
    return f"{_plural(lines, 'line')} so far, none of them a training line{strange}"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def place_in_log() -> Callable[[float, Record | None], None]:
    """Says now and then where a replay is."""
    tell = _now_and_then("replay")

    def progress(seconds: float, record: Record | None) -> None:
        where = "no iteration yet"
        if record:
            values = record.values
            where = f"iteration {values[catalog.ITERATION]}/{values.get(catalog.TARGET_ITERATION, '?')}"
        tell(f"{where}, {timedelta(seconds=round(seconds))} into the log")

    return progress


def share_read() -> Callable[[float], None]:
    """Says now and then how much of the past has been read."""
    tell = _now_and_then("follow")
    return lambda left: tell(f"{1 - left:.0%} of what is there already has been read")


def _now_and_then(verb: str) -> Callable[[str], None]:
    """Says something at most every PROGRESS_S, and only on a terminal."""
    told = -math.inf
    watched = sys.stderr.isatty()

    def tell(message: str) -> None:
        nonlocal told
        if watched and time.monotonic() - told >= PROGRESS_S:
            told = time.monotonic()
            say(message, verb)

    return tell
