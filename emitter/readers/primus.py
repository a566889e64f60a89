"""Primus: Megatron-LM's line with the memory of the device, and with a mean behind some values.

Memory in use on the device is neither what PyTorch allocated nor what it reserved, so it has no metric.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .. import catalog
from . import megatron
from .printed import anything, leading
from .table import Family, Field

FIELDS = (
    *megatron.FIELDS,
    Field(metric=catalog.STEP_DURATION, keys=("elapsed time per iteration (ms)",), read=leading),
    Field(
        metric=catalog.THROUGHPUT_TFLOPS,
        keys=("compute per GPU (TFLOP/s/GPU)", "throughput per GPU (TFLOP/s/GPU)"),
        read=leading,
    ),
    Field(
        metric=catalog.TOKENS_PER_SEC,
        keys=("tokens/s/GPU inst/harmonic mean", "tokens per GPU (tokens/s/GPU)"),
        read=leading,
        per_gpu=True,
    ),
    Field(metric=None, keys=("hip mem usage/free/total/usage_ratio", "mem usages"), read=anything),
    Field(metric=None, keys=("rocm mem usage/free/total/usage_ratio",), read=anything),
    Field(metric=None, keys=("rocm max mem usage/usage_ratio", "max mem usage/usage_ratio"), read=anything),
)

TRAINING = replace(
    megatron.TRAINING,
    fields=FIELDS,
    # The number of the rank that has the largest memory is in a key.
    pair=re.compile(r"(?:\s{0,8}rank-\d{1,9} )?([^|:]{1,64}):([^|]{0,256})\|", re.ASCII),
)

FAMILY = Family(
    name="primus",
    title="Primus, 2025 and 2026",
    example=(
        "[20310506 07:08:09][rank-7/8][INFO ] [--------trainer.py:2488] :  iteration      120/    9000 | "
        "consumed samples:         3840 | elapsed time per iteration (ms): 2000.0/2012.5 | "
        "hip mem usage/free/total/usage_ratio: 96.00GB/96.00GB/192.00GB/50.00% | "
        "compute per GPU (TFLOP/s/GPU): 222.5 (avg 221.0) | tokens/s/GPU inst/harmonic mean: 4096.0/4088.5 | "
        "learning rate: 1.500000E-04 | global batch size:    32 | lm loss: 3.250000E+00 | loss scale: 1.0 | "
        "grad norm: 0.875 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    training=(TRAINING,),
    others=megatron.OTHERS,
    signatures=("mem usage", "compute per GPU", "tokens/s/GPU inst", "tokens per GPU (tokens/s/GPU)"),
)
