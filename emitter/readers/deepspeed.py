"""DeepSpeed's engine: the line of its pipeline engine, and what it prints beside any training line.

- A skipped step is known by its OVERFLOW line. The total behind `skipped=` goes on from the checkpoint after a restart,
  and the training lines of Megatron-DeepSpeed report 0.
- `MaxMemAllocated` is in units of 1024³ bytes.
"""

from __future__ import annotations

import re

from .. import catalog
from .lines import last_stamp
from .readings import Reading
from .table import Family, Field, Mark, TrainingLine, known, number
from .timers import TimersLine


def _overflow(match: re.Match[str]) -> Reading:
    scale = number(match["scale"] or "")
    values = {catalog.SKIPPED_ITERS: 1}
    return Reading(kind="ahead", values=values if scale is None else {**values, catalog.LOSS_SCALE: scale})


def _step(match: re.Match[str]) -> Reading:
    rate = number(match[1])
    return Reading(kind="ahead", values={} if rate is None else {catalog.LEARNING_RATE: rate})


MARKS = (
    Mark(
        words=("Skipping step",),
        # Of old versions all ranks print it.
        pattern=re.compile(
            r"(?:\[\w+\] )?(?:OVERFLOW! Rank 0|fp16 dynamic loss scale overflow!(?: Rank 0)?) Skipping step\."
            r"(?: Attempted loss scale: [\d.e+]+, reducing to (?P<scale>[\d.e+]*\d)| [\w :,.+]{0,60}$)?"
        ),
        begin=re.compile(r"(?:\[\w+\] )?(?:OVERFLOW|fp16 dynamic loss scale overflow)!(?! Rank [1-9]| Rank 0\d)"),
        make=_overflow,
    ),
    Mark(
        words=("skipped=",),
        pattern=re.compile(r"(?<!\S)step=\d{1,18}, skipped=\d+, lr=\[?([\d.e+-]+)(?=[],])", re.ASCII),
        begin=re.compile(r"(?<!\S)step=\d+, skipped=", re.ASCII),
        make=_step,
    ),
    Mark(
        words=("SamplesPerSec=",),
        pattern=re.compile(
            r"(?<!\S)(?:\S+[/=])?(\d{1,18}), RunningAvgSamplesPerSec=.{0,256}MaxMemAllocated=(\d+(?:\.\d*)?)GB",
            re.ASCII,
        ),
        begin=re.compile(r"(?<!\S)(?:\S+[/=])?\d+, RunningAvgSamplesPerSec=", re.ASCII),
        make=lambda match: Reading(
            kind="memory",
            iteration=int(match[1]),
            values={catalog.MEMORY_ALLOCATED: float(match[2])},
            stamp=last_stamp(match.string),
        ),
    ),
)
"""What is printed beside the training line, whoever prints that."""

PIPELINE = TrainingLine(
    words=("steps: ",),
    head=re.compile(r"(?<!\S)steps: (?P<iteration>\d{1,18}) (?=(?:loss|iter time \(s\)|samples/sec): )", re.ASCII),
    fields=(
        Field(metric=catalog.LOSS, keys=("loss",)),
        Field(metric=catalog.STEP_DURATION, keys=("iter time (s)",), factor=1000),
        Field(metric=None, keys=("samples/sec", "lm loss", "moe loss")),
    ),
    last="samples/sec",
    pair=re.compile(r"([a-z][a-z /()]{0,63}): *(\S+)", re.ASCII),
    closed=False,
)

BESIDE = (*MARKS, Mark(words=PIPELINE.words, pattern=PIPELINE.head, make=known))
"""The same where the pipeline engine's line is no result, since the report of the iteration follows in full."""

FAMILY = Family(
    name="deepspeed",
    title="DeepSpeed's pipeline engine, where nothing else reports the step",
    example="steps: 40 loss: 3.2500 iter time (s): 1.250 samples/sec: 204.800",
    training=(PIPELINE,),
    others=(*MARKS, TimersLine()),
    companion=True,
)
