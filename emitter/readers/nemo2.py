"""NeMo 2.0: the line of its ProgressPrinter, in any order of columns.

The iteration is `global_step`, which counts from 0, as it is printed; the number in front counts within the epoch.
"""

from __future__ import annotations

import re

from .. import catalog
from .lines import last_stamp
from .printed import anything, whole
from .readings import Reading
from .table import Family, Field, Mark, TrainingLine, known

FIELDS = (
    Field(metric=catalog.ITERATION, keys=("global_step",), read=whole),
    Field(metric=catalog.LOSS, keys=("reduced_train_loss",)),
    Field(metric=catalog.STEP_DURATION, keys=("train_step_timing in s",), factor=1000),
    Field(metric=catalog.LEARNING_RATE, keys=("lr",)),
    Field(metric=catalog.GRAD_NORM, keys=("grad_norm",)),
    Field(metric=catalog.GLOBAL_BATCH_SIZE, keys=("global_batch_size",), read=whole),
    Field(metric=catalog.CONSUMED_SAMPLES, keys=("consumed_samples",), read=whole),
    Field(metric=catalog.VALIDATION_LOSS, keys=("val_loss",)),
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("TFLOPS_per_GPU",)),
    Field(metric=catalog.MEMORY_ALLOCATED, keys=("memory/peak_allocated_mem",), factor=1e9 / 1024**3),
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("memory/peak_reserved_mem",), factor=1e9),
    Field(metric=None, keys=("loss", "train_backward_timing in s", "validation_step_timing in s")),
    Field(metric=None, keys=("v_num",), read=anything),
)

TRAINING = TrainingLine(
    words=("Training epoch",),
    head=re.compile(r"(?<!\S)Training epoch \d+, iteration \d+/\d+(?= \|)", re.ASCII),
    fields=FIELDS,
    closed=False,
)


def _saved(match: re.Match[str]) -> Reading:
    return Reading(kind="checkpoint", iteration=int(match["iteration"]), stamp=match["stamp"] or "")


OTHERS = (
    Mark(
        words=("distributed processes registered",),
        pattern=re.compile(r"All distributed processes registered\. Starting with (\d{1,9}) process", re.ASCII),
        begin=re.compile(r"All distributed processes registered[. A-Za-z]{0,16}[ \d]{0,10}[a-z]{0,7}$", re.ASCII),
        make=lambda match: Reading(
            kind="start", settings={"world_size": int(match[1])}, stamp=last_stamp(match.string)
        ),
    ),
    Mark(
        words=("checkpoint save",),
        pattern=re.compile(
            r"(?:\[NeMo I (?P<stamp>[\d :-]{1,32}) [^\]]{0,256}\] )?"
            r"Async checkpoint save for step (?P<iteration>\d{1,18}) .{0,1024}finalized successfully",
            re.ASCII,
        ),
        begin=re.compile(r"Async checkpoint save for step", re.ASCII),
        make=_saved,
    ),
    Mark(words=("checkpoint save",), pattern=re.compile(r"Scheduled async checkpoint save for "), make=known),
    Mark(
        words=("Validation",),
        pattern=re.compile(r"(?<!\S)Validation: iteration \d+/\d+", re.ASCII),
        make=lambda match: Reading(kind="phase", phase="evaluate", stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("Trainer.fit",),
        pattern=re.compile(r"`Trainer\.fit` stopped: ", re.ASCII),
        make=lambda match: Reading(kind="end", stamp=last_stamp(match.string)),
    ),
)

FAMILY = Family(
    name="nemo2",
    title="NeMo 2.0",
    example=(
        "Training epoch 0, iteration 19/99 | lr: 1.5e-05 | global_batch_size: 512 | global_step: 119 | "
        "reduced_train_loss: 3.25 | train_step_timing in s: 2.5 | consumed_samples: 61440"
    ),
    training=(TRAINING,),
    others=OTHERS,
)
