"""Argonne's Megatron-DeepSpeed, since 2024: its fields as `key=value`.

Of two throughputs Megatron-LM's own way of counting is taken, as everywhere else.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .. import catalog
from . import megatron, megatron_deepspeed
from .table import Family, Field

FIELDS = (
    *megatron_deepspeed.FIELDS,
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("[LM]TFLOPs",)),
    Field(metric=None, keys=("[DS]TFLOPs",)),
)

TRAINING = replace(
    megatron_deepspeed.TRAINING,
    words=("iteration=",),
    head=re.compile(r"(?<!\S)iteration= *(?P<iteration>\d{1,18})/ *(?P<target>\d{1,18}) *\|", re.ASCII),
    fields=FIELDS,
    assign="=",
)

FAMILY = Family(
    name="argonne",
    title="Argonne's Megatron-DeepSpeed, since 2024",
    example=(
        "[2031-05-06 07:08:09.000321][I][megatron/training_log:402:training_log]  iteration=     120/    9000 | "
        "consumed_samples=        3840 | consumed_tokens=     7864320 | elapsed_time_per_iteration_ms=2000.0 | "
        "learning_rate=0.00015 | global_batch_size=   32 | lm loss=3.250000 | loss_scale=1.0 | grad_norm=0.875 | "
        "actual_seqlen= 2048 | number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | "
        "samples_per_second=16.000 | tokens_per_gpu_per_second_tgs=4096.000 | [LM]TFLOPs=102.50 | [DS]TFLOPs=131.25 |"
    ),
    training=(TRAINING,),
    others=megatron.OTHERS,
)
