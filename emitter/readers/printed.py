"""Numbers as some layouts print them: with a unit, a magnitude or a second number behind. For `Field.read`."""

from __future__ import annotations

import re

from .readings import Number
from .table import number

MAGNITUDES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "P": 10**15}

_LEADING = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|nan|inf)(?![\w.])", re.ASCII | re.IGNORECASE)
_MAGNITUDE = re.compile(r"([+-]?\d+\.?\d*) ?([KMGBTP]?)", re.ASCII)


def leading(printed: str) -> Number | None:
    """The number that a text begins with: `12.5/13.1`, `12.5 (avg 13.1)`, `12.5 s`."""
    match = _LEADING.match(printed)
    return number(match.group()) if match else None


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
