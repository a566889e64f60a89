"""Forks of Megatron-LM with a few keys of their own: swiss-ai; rioyokotalab's Megatron-Llama2 and its relatives."""

from __future__ import annotations

from dataclasses import replace

from .. import catalog
from . import megatron
from .printed import anything, leading, magnitude
from .table import Family, Field

FIELDS = (
    *megatron.FIELDS,
    Field(metric=catalog.CONSUMED_TOKENS, keys=("consumed tokens",), read=magnitude),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens/sec/gpu",), per_gpu=True),
    Field(metric=None, keys=("eta",), read=anything),
    # In seconds, with samples/sec behind it and no separator between.
    Field(metric=catalog.STEP_DURATION, keys=("iteration time",), read=leading, factor=1000),
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("TFLOPS",)),
)

FAMILY = Family(
    name="megatron-forks",
    title="Forks of Megatron-LM: swiss-ai, rioyokotalab",
    example=(
        " [2031-05-06 07:08:09] iteration      120/    9000 | consumed samples:         3840 | "
        "consumed tokens: 7.864M | elapsed time per iteration (ms): 2000.0 | eta: 4:56:00 | tokens/sec/gpu: 4096.0 | "
        "throughput per GPU (TFLOP/s/GPU): 222.5 | learning rate: 1.500000E-04 | global batch size:    32 | "
        "lm loss: 3.250000E+00 | loss scale: 1.0 | grad norm: 0.875 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    ),
    training=(replace(megatron.TRAINING, fields=FIELDS),),
    others=megatron.OTHERS,
    signatures=("tokens/sec/gpu:", "iteration time:"),
)
