"""MindSpeed-LLM: the line of its Megatron trainer, and that of its FSDP2 trainer.

The FSDP2 trainer prints a loss that is no finite number as 0, its memory in units of 1024³ bytes, and has no counters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .. import catalog
from . import megatron
from .readings import Number
from .table import Family, Field, number


def _loss(printed: str) -> Number | None:
    return math.nan if (value := number(printed)) == 0 else value


FIELDS = (
    *megatron.FIELDS,
    Field(metric=None, keys=("core attn ratio (%)",)),
)

FSDP2_FIELDS = (
    *FIELDS,
    Field(metric=catalog.LOSS, keys=("lm loss",), read=_loss),
    Field(metric=catalog.CONSUMED_TOKENS, keys=("consumed tokens",)),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens/s",)),
    Field(metric=catalog.MFU, keys=("mfu",), factor=0.01),
    Field(metric=catalog.MEMORY_ALLOCATED, keys=("max_memory_allocated(GB)",)),
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("max_memory_reserved(GB)",), factor=1024**3),
    Field(metric=None, keys=("mtp loss", "aux loss")),
    Field(metric=None, keys=("cpu_used_memory(GB)", "cpu_available_memory(GB)", "cpu_memory_usage(%)")),
)

FSDP2 = replace(
    megatron.TRAINING,
    fields=FSDP2_FIELDS,
    last="max_memory_reserved(GB)",
    silent_nan=False,
    signature="max_memory_allocated(GB):",
)

FAMILY = Family(
    name="mindspeed",
    title="MindSpeed-LLM, its FSDP2 trainer too",
    example=(
        " [2031-05-06 07:08:09] iteration      120/    9000 | consumed samples:         3840 | "
        "elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 222.5 | "
        "core attn ratio (%): 12.5 | learning rate: 1.500000E-04 | global batch size:    32 | lm loss: 3.250000E+00 | "
        "loss scale: 1.0 | grad norm: 0.875 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    training=(FSDP2, replace(megatron.TRAINING, fields=FIELDS)),
    others=megatron.OTHERS,
    signatures=("core attn ratio", "max_memory_allocated(GB):"),
)
