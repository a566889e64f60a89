"""torchtitan, all generations since 2024; coloured or not, from one rank or from all.

Tokens per second are those of one device, memory is the peak that PyTorch reserved, and 2024's `wps` are its `tps`.
Without a time in the line a step is as long as the stamps tell.
"""

from __future__ import annotations

import math
import re

from .. import catalog
from .lines import last_stamp
from .printed import grouped, percent
from .readings import Reading
from .table import Family, Field, Mark, PercentLine, known, number

FIELDS = (
    Field(metric=catalog.LOSS, keys=("loss",)),
    Field(metric=catalog.GRAD_NORM, keys=("grad_norm",)),
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("memory",), factor=1024**3),
    Field(metric=catalog.MEMORY_MAX_RESERVED_SHARE, keys=("GiB",), read=percent),  # in brackets behind `memory`
    Field(metric=None, keys=("peak_memory",), read=percent),  # of 2024-03, when it was active memory
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tps", "wps"), read=grouped, per_gpu=True),
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("tflops",), read=grouped),
    Field(metric=catalog.MFU, keys=("mfu",), read=percent),
)


TRAINING = PercentLine(
    words=("step: ",),
    head=re.compile(r"(?<!validate )(?<!\w)step: *(?P<iteration>\d{1,18})  (?=[A-Za-z_]{1,64}: )", re.ASCII),
    fields=FIELDS,
    last="mfu",
    pair=re.compile(
        r"(?<![A-Za-z_])([A-Za-z_]{1,64})(?:: *|(?<=GiB)\()([^\s()]{1,64}?)(?=GiB\(|[\s()]|(?<=%)$)", re.ASCII
    ),
    closed=False,
    until="mfu: N/A",  # where the precision leaves it undefined: the end, with nothing to read
)


def _validation(match: re.Match[str]) -> Reading:
    loss = number(match[2])
    values = {} if loss is None else {catalog.VALIDATION_LOSS: loss}
    return Reading(kind="validation", iteration=int(match[1]), values=values, stamp=last_stamp(match.string))


def _mesh(match: re.Match[str]) -> Reading:
    degrees = re.findall(r"(?<![\w.])\d+", match["degrees"] or match["list"])
    world_size = math.prod(int(degree) for degree in degrees)
    return Reading(kind="start", settings={"world_size": world_size}, stamp=last_stamp(match.string))


def _begin(match: re.Match[str]) -> Reading:
    """The first step and, in versions that tell them here, the sizes."""
    iteration = int(match["first"] or 1) - 1
    names = {"global_batch_size": "batch", "seq_length": "sequence", "train_iters": "target"}
    settings = {name: int(match[group]) for name, group in names.items() if match[group]}
    kind = "resume" if iteration else "settings"
    return Reading(kind=kind, iteration=iteration or None, settings=settings, stamp=last_stamp(match.string))


OTHERS = (
    Mark(
        words=("validate step: ",),
        pattern=re.compile(r"validate step: *(\d{1,18}) +loss: *(\S+)(?=\s)", re.ASCII),
        begin=re.compile(r"validate step: ", re.ASCII),
        make=_validation,
    ),
    Mark(
        words=("device mesh",),
        pattern=re.compile(
            r"Building (?:\d+-D device mesh with \[[^]]*\], \[(?P<list>(?:\d{1,9}, ?){0,7}\d{1,9})\]"
            r"|device mesh with parallelism: "
            r"(?P<degrees>pp=\d{1,9}, dp_replicate=\d{1,9}, dp_shard=\d{1,9}, cp=\d{1,9}, tp=\d{1,9}))",
            re.ASCII,
        ),
        begin=re.compile(r"Building (?:\d+-D )?device mesh with ", re.ASCII),
        make=_mesh,
    ),
    Mark(
        words=("Training starts at step", "Trainer is initialized with"),
        pattern=re.compile(
            r"(?:Training starts at step (?P<first>\d{1,18})|Trainer is initialized with )"
            r"(?:.*global batch size (?P<batch>\d{1,18}), )?"
            r"(?:.*(?:sequence|maximum context) length (?P<sequence>\d{1,18}), )?"
            r"(?:.*total steps (?P<target>\d{1,18})|[\w ,-]{0,256}$)?",
            re.ASCII,
        ),
        make=_begin,
    ),
    Mark(
        words=("the checkpoint", "step checkpoint"),
        pattern=re.compile(r"Finished saving the checkpoint|Last step checkpoint completed", re.ASCII),
        make=lambda match: Reading(kind="checkpoint", stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("the checkpoint",),
        pattern=re.compile(r"Saving the checkpoint(?=\.| \()", re.ASCII),
        make=lambda match: Reading(kind="saving", stamp=last_stamp(match.string)),
    ),
    Mark(words=("the checkpoint",), pattern=re.compile(r"(?:Loading|Staging|staging) the checkpoint"), make=known),
    Mark(
        words=("allocation retries",),
        pattern=re.compile(r"(\d{1,18}) \w+ memory allocation retries", re.ASCII),
        make=lambda match: Reading(kind="ahead", cumulative={catalog.MEMORY_ALLOC_RETRIES: int(match[1])}),
    ),
    Mark(
        words=("OOM errors",),
        pattern=re.compile(r"(\d{1,18}) \w+ OOM errors thrown", re.ASCII),
        make=lambda match: Reading(kind="ahead", cumulative={catalog.MEMORY_OOMS: int(match[1])}),
    ),
    Mark(
        words=("Training completed",),
        pattern=re.compile(r"(?<!\S)Training completed\s*$"),
        make=lambda match: Reading(kind="end", stamp=last_stamp(match.string)),
    ),
)

FAMILY = Family(
    name="torchtitan",
    title="torchtitan, since 2024",
    example=(
        "[titan] 2031-05-06 07:08:09,321 - root - INFO - step: 120  loss:  3.25000  grad_norm:  0.8750  "
        "memory: 24.50GiB(30.62%)  tps: 4,096  tflops: 222.50  mfu: 22.50%"
    ),
    training=(TRAINING,),
    others=OTHERS,
)
