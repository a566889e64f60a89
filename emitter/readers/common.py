"""Lines that may stand in any log: a scheduler's, a watchdog's, an interpreter's."""

from __future__ import annotations

import re

from .lines import last_stamp
from .readings import Reading
from .table import Mark, known

CANCELLED = Mark(
    words=("slurmstepd",),
    pattern=re.compile(r"slurmstepd: error: \*\*\* .{0,256}CANCELLED AT (?!.{0,256}NODE FAILURE)", re.ASCII),
    make=lambda match: Reading(kind="end", stamp=last_stamp(match.string)),
)
"""Somebody, or the time limit, stopped the job."""

WATCHDOG = Mark(
    words=("Watchdog caught collective operation timeout",),
    pattern=re.compile(r"Watchdog caught collective operation timeout"),
    make=lambda match: Reading(kind="hang", stamp=last_stamp(match.string)),
)
"""PyTorch gives up waiting for another rank."""

CRASH = Mark(
    words=("Traceback (most", "Error: "),
    pattern=re.compile(r"Traceback \(most recent call last\)|(?:^|[\s.])[A-Z]\w*Error: "),
    make=known,
)
"""An exception is no end: others may go on, or the job is started again."""

RULE = Mark(
    words=("----------",), pattern=re.compile(r"^\s*-{20,}\s*$|(?<!-)-{5,} (?:end of )?arguments -{5,}"), make=known
)

LAYOUTS = (CANCELLED, WATCHDOG, CRASH, RULE)
