"""ms-swift on Megatron-LM, until 2026-03: Megatron-LM's line, in which every loss is printed. Later: hugging_face."""

from __future__ import annotations

from dataclasses import replace

from .. import catalog
from . import megatron
from .printed import anything
from .table import Family, Field

FIELDS = (
    *megatron.FIELDS,
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("memory(GiB)",), factor=1024**3),
    Field(metric=None, keys=("elapsed time", "remaining time"), read=anything),
)

TRAINING = replace(megatron.TRAINING, fields=FIELDS, silent_nan=False)

FAMILY = Family(
    name="ms-swift",
    title="ms-swift on Megatron-LM, until 2026-03",
    example=(
        " [2031-05-06 07:08:09] iteration      120/    9000 | consumed samples:         3840 | "
        "elapsed time per iteration (ms): 2000.0 | memory(GiB): 24.5 | elapsed time: 4m 0s | "
        "remaining time: 4h 56m 0s | learning rate: 1.500000E-04 | global batch size:    32 | loss: 3.250000E+00 | "
        "loss scale: 1.0 | grad norm: 0.875 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    training=(TRAINING,),
    others=megatron.OTHERS,
    signatures=("memory(GiB):",),
)
