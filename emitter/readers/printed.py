"""Numbers as some layouts print them: with a unit, a magnitude or a second number behind. For `Field.read`."""

from __future__ import annotations

import re

from .readings import Number
from .table import number

MAGNITUDES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}

LARGEST = 10**18
"""What a whole number stays below, so that it may be stored and divided."""

_LEADING = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf)(?![\w.])", re.ASCII | re.IGNORECASE)
_ELAPSED = re.compile(r"(?:(\d{1,9}) days?, ?)?(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})", re.ASCII)
_ELAPSED_PARTS = re.compile(r"(?=\d)(?:(\d{1,9})d ?)?(?:(\d{1,9})h ?)?(?:(\d{1,9})m ?)?(?:(\d{1,9})s)?(?<! )", re.ASCII)
_MAGNITUDE = re.compile(r"([+-]?\d+(?:\.\d*)?) ?([KMGBTPE]?)", re.ASCII)


def leading(printed: str) -> Number | None:
    """The number that a text begins with: `12.5/13.1`, `12.5 (avg 13.1)`, `12.5 s`."""
    match = _LEADING.match(printed)
    return number(match.group()) if match else None


def whole(printed: str) -> int | None:
    """A count, however it is printed: `3.1e+4`, `39.00`."""
    value = number(printed)
    return int(value) if value is not None and abs(value) < LARGEST else None


def elapsed(printed: str) -> int | None:
    """Seconds of a duration: `1:02:03`, `02:03`, `1 day, 2:03:04`, `1h 2m 3s`."""
    match = (_ELAPSED_PARTS if printed.endswith(("d", "h", "m", "s")) else _ELAPSED).fullmatch(printed)
    if match is None:
        return None
    days, hours, minutes, seconds = map(int, match.groups(default="0"))
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def grouped(printed: str) -> Number | None:
    """A number with commas between its thousands: `4,096`."""
    return number(printed.replace(",", ""))


def percent(printed: str) -> Number | None:
    """A share that is printed as `12.5%`."""
    value = number(printed.removesuffix("%")) if printed.endswith("%") else None
    return None if value is None else value / 100


def magnitude(printed: str) -> Number | None:
    """A number that may have a magnitude behind it: `634K`, `1.258B`."""
    match = _MAGNITUDE.fullmatch(printed)
    if match is None:
        return None
    value = number(match[1])
    return None if value is None else value * MAGNITUDES[match[2]]


def anything(printed: str) -> Number | None:
    """No number, and none is missed: for what is known and has no metric, such as `2:03:04`."""
    return 0 if printed else None


AS_IT_IS = frozenset((number, leading, whole, grouped, magnitude))
"""Those to which a number with nothing around it is just that number, unless they make it an integer."""
