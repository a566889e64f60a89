"""GPT-NeoX and Savanna: the line begins with samples per second, a NaN is printed, FLOP/s have a unit."""

from __future__ import annotations

import re
from dataclasses import replace

from .. import catalog
from . import megatron
from .printed import anything, percent
from .readings import Number, Reading
from .table import Family, Field, Mark, number

TERA = {"": 1e-12, "K": 1e-9, "M": 1e-6, "G": 1e-3, "T": 1, "P": 1e3, "E": 1e6, "Z": 1e9}

_FLOPS = re.compile(r"(\d+(?:\.\d*)?)([KMGTPEZ]?)FLOPS", re.ASCII)


def teraflops(printed: str) -> Number | None:
    """FLOP/s in any unit, as TFLOP/s."""
    match = _FLOPS.fullmatch(printed)
    return float(match[1]) * TERA[match[2]] if match else None


FIELDS = (
    *megatron.FIELDS,
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("approx flops per GPU",), read=teraflops),
    Field(metric=catalog.MFU, keys=("MFU",), read=percent),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("tokens/s/gpu",), per_gpu=True),
    Field(metric=None, keys=("HFU", "batch size (tokens)", "total_token/month @ 2048 GPUs"), read=anything),
    Field(metric=None, keys=("global flops throughput (flops / s)", "token index into training data"), read=anything),
)

TRAINING = replace(
    megatron.TRAINING,
    head=re.compile(rf"(?:(?<!\S)samples/sec: *[\d.]+ *\| *)?{megatron.HEAD.pattern}", re.ASCII),
    fields=FIELDS,
    silent_nan=False,
)


def _validation(match: re.Match[str]) -> Reading:
    loss = number(match[2])
    return Reading(
        kind="validation", iteration=int(match[1]), values={} if loss is None else {catalog.VALIDATION_LOSS: loss}
    )


VALIDATION = Mark(
    words=("validation results",),
    pattern=re.compile(
        r"(?<!\S)validation results at iteration (\d{1,18}) *\|(?:.{0,1024}\|)? *lm_loss value: *([^ |]+) *\|", re.ASCII
    ),
    begin=re.compile(r"(?<!\S)validation results at iteration", re.ASCII),
    make=_validation,
)

FAMILY = Family(
    name="gpt-neox",
    title="GPT-NeoX and Savanna",
    example=(
        " samples/sec: 16.000 | iteration      120/    9000 | elapsed time per iteration (ms): 2000.0 | "
        "learning rate: 1.500E-04 | approx flops per GPU: 102.5TFLOPS | lm_loss: 3.250000E+00 | loss scale: 4096.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    training=(TRAINING,),
    others=(VALIDATION, *megatron.OTHERS),
    signatures=("approx flops per GPU:", "lm_loss:"),
)
