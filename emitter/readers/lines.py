"""Bytes of a log to physical lines, and a physical line to its text, its source and its time.

A line ends at a line feed, at a carriage return (what a progress bar overwrites is a line of its own) or at both.
What launchers, loggers and viewers put in front is taken off: it tells which process printed the line, and when.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

LONGEST = 65_536
"""Bytes of a line that are kept: memory stays bounded, whatever comes. The longest real lines have some thousands."""

_STAMP = r"(?:\d{4}-\d\d-\d\d[ T]|\d{8}[ ]|\d\d/\d\d/\d{4}[ ])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:\d\d)?"
_LEVEL = r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|[DIWE])"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_DATE = re.compile(
    r"((?:\d{4}-\d\d-\d\d|\d{8}|\d\d/\d\d/\d{4})[ T]\d\d:\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1)  # most logs leave out the time zone
_YEARS = 2000, 2100
"""A time outside of them is a number that looks like one, or that of a clock which was never set."""

_PREFIX = re.compile(
    rf"""\s*(?:
    (?P<source>
        \d{{1,6}}:(?=\s)                                 # srun --label
      | \[[A-Z]+\|DP=\d+\|[\w.=|-]{{0,80}}\]:(?=\s)        # nanotron
      | \[default\d+\]:                                  # torchrun --tee
      | \[rank-?\d+(?:/\d+)?\]:?                         # PyTorch's logging, Primus
      | \[[A-Za-z][\w.-]*:\d+\]:                         # [node:local rank]:
      | \([^()|]{{0,80}}?\bpid=\d+[^()|]{{0,20}}\)(?=\s)                # Ray
      | (?=[\d_.-]*[A-Za-z])[^\s|/]{{1,10}}/\d{{1,5}}(?=\s)  # NeMo-Run: the last ten characters of the job, the replica
      | (?=[A-Za-z_.-]*\d)[A-Za-z][\w.-]*:(?=\s)         # pdsh
    )
  | \[(?P<bracketed>{_STAMP})\]
  | (?P<bare>{_STAMP})(?:\s*-\s[\w.]+\s-\s{_LEVEL}\s-)?(?=\s)
  | >{{1,2}}(?=\s)                                       # quotes, MindSpeed
  | \[titan\](?=\s)
  | {_LEVEL}(?:\s*\[(?P<logged>{_STAMP})\]|(?P<tight>:[\w.]+:))  # logging's default form
  | {_LEVEL}(?=\s\[)
  | \[(?:\d+|\s*{_LEVEL}\s*)\]                           # viewers' numbers, level
  | \[Rank[ ]\d+\](?=[ ](?:time[ ]\(ms\)|step=))          # DeepSpeed
  | \[[^\[\]|]{{0,80}}\.py:\d+\](?:\s:(?=\s))?           # Primus: where it is printed
  | \[[\w./]+:\d+(?::\w+)?\](?:\s-(?=\s))?               # ezpz: where it is printed
    )(?(tight)|(?:(?<!\[default\d\]:)(?<!\[default\d\d\]:)\s)?)""",
    re.ASCII | re.VERBOSE,
)


class Line(NamedTuple):
    """A physical line without what others added."""

    text: str
    source: str
    """Who printed it, as the launcher says: a rank, a host, a process. Empty where nothing tells."""
    stamp: str
    """The time in front of it, as it is printed; empty where there is none."""
    width: int
    """Characters on the screen, what others added included."""


class Splitter:
    """Cuts bytes into lines. The last one waits until it has an end."""

    def __init__(self) -> None:
        self._waiting: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, with their ends."""
        if b"\n" not in data and b"\r" not in data and not self._ends_in_return():
            self._keep(data)
            return []
        lines = (b"".join(self._waiting) + data).splitlines(keepends=True)
        self._waiting.clear()
        self._size = 0
        if not lines[-1].endswith(b"\n"):  # a carriage return at the very end may be half of a line end
            self._keep(lines.pop())
        return lines

    def close(self) -> bytes:
        """What is left: a line without an end."""
        rest = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        return rest

    def _ends_in_return(self) -> bool:
        return bool(self._waiting) and self._waiting[-1].endswith(b"\r")

    def _keep(self, data: bytes) -> None:
        if data and self._size < LONGEST:
            self._waiting.append(data)
            self._size += len(data)


def visible(raw: bytes) -> str:
    """The text of a line as a terminal shows it."""
    text = raw[:LONGEST].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.rstrip("\r\n").strip("\0\ufeff")


def read_line(raw: bytes) -> Line:
    """A physical line, freed of what launchers, loggers and viewers put in front."""
    text = visible(raw)
    sources = []
    stamp = ""
    position = 0
    while match := _PREFIX.match(text, position):
        if match["source"]:
            sources.append(match["source"])
        stamp = match["bracketed"] or match["bare"] or match["logged"] or stamp
        position = match.end()
    return Line(text=text[position:], source=" ".join(sources), stamp=stamp, width=len(text))


def last_stamp(text: str) -> str:
    """The last time that a text names; empty if there is none."""
    found = ""
    for match in _DATE.finditer(text):
        found = match.group()
    return found


Clock = tuple[float | None, bool, bool]
"""Seconds of a printed time, as if it were UTC unless it names its zone; whether it has microseconds, and a zone."""

NO_TIME: Clock = (None, False, False)


def moment(stamp: str) -> Clock:
    """A printed time as a number."""
    match = _DATE.search(stamp)
    if match is None:
        return NO_TIME
    date, second, fraction, zone = match.groups()
    begin = _minute(date)
    if begin is None or second > "59":
        return NO_TIME
    seconds = begin + int(second)
    if zone is not None and zone != "Z":
        seconds -= int(f"{zone[0]}1") * (int(zone[1:3]) * 3600 + int(zone[4:]) * 60)
    if fraction is None:
        return seconds, False, zone is not None
    return seconds + float(f"0.{fraction}"), len(fraction) == 6, zone is not None


@lru_cache(maxsize=256)
def _minute(date: str) -> float | None:
    """Seconds of a date with hour and minute, which lines in a row share; None if there is no such date."""
    if "/" in date:  # month, day, year
        date = f"{date[6:10]}-{date[:2]}-{date[3:5]}{date[10:]}"
    elif "-" not in date:
        date = f"{date[:4]}-{date[4:6]}-{date[6:]}"
    try:
        time = datetime.fromisoformat(date)
    except ValueError:
        return None
    return (time - _EPOCH).total_seconds() if _YEARS[0] <= time.year <= _YEARS[1] else None
