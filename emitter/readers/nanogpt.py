"""nanoGPT and what copied its loop.

The share of the peak is of an A100, whatever the device; it begins at -100 %, which means that there is none yet.
"""

from __future__ import annotations

import re

from .. import catalog
from .printed import percent
from .readings import Number, Reading
from .table import Family, Field, Mark, PercentLine, number


def _milliseconds(printed: str) -> Number | None:
    return number(printed.removesuffix("ms")) if printed.endswith("ms") else None


def _validation(match: re.Match[str]) -> Reading:
    loss = number(match[2])
    values = {} if loss is None else {catalog.VALIDATION_LOSS: loss}
    return Reading(kind="validation", iteration=int(match[1]), values=values)


TRAINING = PercentLine(
    words=("iter ",),
    head=re.compile(r"(?<!\S)iter +(?P<iteration>\d{1,18}): (?=(?:loss|time|mfu) )", re.ASCII),
    fields=(
        Field(metric=catalog.LOSS, keys=("loss",)),
        Field(metric=catalog.STEP_DURATION, keys=("time",), read=_milliseconds),
        Field(metric=catalog.MFU, keys=("mfu",), read=percent),
    ),
    last="mfu",
    pair=re.compile(r"(?<![a-z])([a-z]{1,64}) ([^\s,]{1,64})(?=[\s,]|(?<=%)$)", re.ASCII),
    closed=False,
    until="mfu -100.00%",
)

VALIDATION = Mark(
    words=("val loss ",),
    pattern=re.compile(r"(?<!\S)step (\d{1,18}): train loss [^\s,]+, val loss (\S+)", re.ASCII),
    make=_validation,
)

FAMILY = Family(
    name="nanogpt",
    title="nanoGPT",
    example="iter 120: loss 3.2500, time 2000.25ms, mfu 37.50%",
    training=(TRAINING,),
    others=(VALIDATION,),
)
