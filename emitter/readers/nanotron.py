"""nanotron: numbers with a magnitude behind them, three digits each."""

from __future__ import annotations

import math
import re

from .. import catalog
from .printed import elapsed, magnitude
from .readings import Number
from .table import Family, Field, TrainingLine, number

INFINITE = {"infE": math.inf, "-infE": -math.inf}
"""Magnitudes are raised until a number is small enough."""


def human(printed: str) -> Number | None:
    """A number as nanotron prints it: `634K`, `0.000301`, `nan`."""
    value = INFINITE.get(printed, number(printed))
    return magnitude(printed) if value is None else value


FIELDS = (
    Field(metric=catalog.CONSUMED_SAMPLES, keys=("consumed_samples",), read=human),
    Field(metric=catalog.CONSUMED_TOKENS, keys=("consumed_tokens",), read=human),
    Field(metric=catalog.STEP_DURATION, keys=("time_per_iteration_ms", "elapsed_time_per_iteration_ms"), read=human),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens_per_sec",), read=human),
    Field(metric=catalog.GLOBAL_BATCH_SIZE, keys=("global_batch_size",), read=human),
    Field(metric=catalog.LOSS, keys=("lm_loss",), read=human),
    Field(metric=catalog.LEARNING_RATE, keys=("lr",), read=human),
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("model_tflops_per_gpu",), read=human),
    Field(metric=catalog.GRAD_NORM, keys=("grad_norm",), read=human),
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("cuda_max_memory_reserved",), read=human),
    Field(metric=None, keys=("tokens_per_sec_per_gpu", "hardware_tflops_per_gpu", "z_loss"), read=human),
    Field(metric=None, keys=("eta",), read=elapsed),
    Field(
        metric=None,
        keys=("cuda_memory_allocated", "hd_total_memory_tb", "hd_used_memory_tb", "hd_free_memory_tb"),
        read=human,
    ),
)


TRAINING = TrainingLine(
    words=("iteration:",),
    head=re.compile(r"(?<![\w/-])iteration: *(?P<iteration>\d{1,18}) */ *(?P<target>\d{1,18}) *\|", re.ASCII),
    fields=FIELDS,
    closed=False,
)

FAMILY = Family(
    name="nanotron",
    title="nanotron",
    example=(
        "05/06/2031 07:08:09 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 120 / 9000 | consumed_tokens: 7.86M | "
        "time_per_iteration_ms: 2.05K | tokens_per_sec: 32.8K | tokens_per_sec_per_gpu: 4.1K | "
        "global_batch_size: 32 | grad_norm: 0.875 | lm_loss: 3.25 | lr: 0.00015 | model_tflops_per_gpu: 222 | "
        "eta: 5:03:24"
    ),
    training=(TRAINING,),
)
