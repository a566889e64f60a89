"""NeMo 1: what its progress bar shows, with three digits of every number.

So `global_step=3.1e+4` stands for hundreds of iterations in a row, with their losses. The bar's own count is none of
iterations: it has the batches of the validations too, and starts again in each epoch.
"""

from __future__ import annotations

import re
from dataclasses import replace

from . import nemo2
from .readings import Number
from .table import Family, TrainingLine, number


def _padded(printed: str) -> Number | None:
    """A number that was filled up to some characters, even where it is `nan.0`."""
    return number(printed.removesuffix(".0") if "n" in printed else printed)


FIELDS = tuple(replace(field, read=_padded) if field.read is number else field for field in nemo2.FIELDS)

TRAINING = TrainingLine(
    words=("Epoch ",),
    head=re.compile(r"(?<!\S)Epoch \d+: [: ]*\d+%\|[^|]*\| *\d+/\d+ \[(?=\d)", re.ASCII),
    fields=FIELDS,
    pair=re.compile(r"([A-Za-z_][\w/ ]{0,63})=([^,\]]{1,256})(?=[,\]])", re.ASCII),
    end="]",
    rounded=True,
)

FAMILY = Family(
    name="nemo1",
    title="NeMo 1",
    example=(
        "Epoch 0:  12%|█▏        | 1250/10000 [52:05<6:04:35,  2.50s/it, v_num=0, reduced_train_loss=3.250, "
        "global_step=1.2e+3, consumed_samples=6.4e+5, train_step_timing in s=2.500]"
    ),
    training=(TRAINING,),
    others=nemo2.OTHERS,
)
