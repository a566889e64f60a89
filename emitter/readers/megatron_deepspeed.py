"""Megatron-DeepSpeed, 2021 to 2026: BLOOM, deepspeedai, LUMI, ModelLink, Habana.

Gradient norms are exported as they are printed. Under DeepSpeed they may be 0, those of an earlier step, or multiplied
with the loss scale; the line does not tell.
"""

from __future__ import annotations

from dataclasses import replace

from .. import catalog
from . import megatron
from .printed import magnitude
from .table import Family, Field

FIELDS = (
    *megatron.FIELDS,
    Field(metric=catalog.CONSUMED_TOKENS, keys=("consumed tokens",), read=magnitude),
    Field(metric=catalog.GLOBAL_BATCH_SIZE, keys=("gloabl batch size",)),  # ModelLink's spelling
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("TFLOPs",)),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens per gpu per second (tgs)",), per_gpu=True),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens per second",)),
    Field(metric=None, keys=("samples per second",)),  # too low by 1000 where the step is printed in ms
    Field(metric=None, keys=("actual seqlen", "curriculum seqlen", "random ltd reserved length")),
)

TRAINING = replace(megatron.TRAINING, fields=FIELDS)

FAMILY = Family(
    name="megatron-deepspeed",
    title="Megatron-DeepSpeed, 2021 to 2026: BLOOM, deepspeedai, LUMI, ModelLink, Habana",
    example=(
        " iteration      120/    9000 | consumed samples:         3840 | consumed tokens:      7864320 | "
        "elapsed time per iteration (s): 2.00 | learning rate: 1.500E-04 | global batch size:    32 | "
        "lm loss: 3.250000E+00 | grad norm: 0.875 | num zeros: 0.0 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 | samples per second: 16.000 | TFLOPs: 102.50 |"
    ),
    training=(TRAINING,),
    others=megatron.OTHERS,
    signatures=("consumed tokens:", "samples per second:", "tokens per gpu per second", "lm-loss:"),
)
