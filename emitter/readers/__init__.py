"""Readers of training logs: bytes in, records out, one module for each family of layouts.

    log.py        one log, line by line: wrapped, cut, interleaved, counted
    lines.py      bytes → physical lines → text, source, stamp
    words.py      which lines are worth a look
    joining.py    which physical lines are one
    lookback.py   unknown lines in which the next one may have begun
    forms.py      lines that are like one before
    layouts.py    the layouts that a log may have
    account.py    what became of its lines
    readings.py   what one logical line says
    table.py      layouts as tables
    printed.py    numbers with a unit or more behind them
    common.py     lines of any log
    timers.py     Megatron-LM's timers
    history.py    readings → records: attempts, phases
    process.py    one attempt: NaN, skips, totals, ranks that say the same
    echoes.py     what several ranks say, told once
    intervals.py  a first iteration that is reported twice
    elapsed.py    durations from a clock of whole seconds

A family is added so:

1. A module with its `FAMILY`: a `TrainingLine` (head, fields, how a value stands behind its key) and, as `Mark`s, its
   other lines. Its `example` is a line written after the layout, never one that was copied. What is special about it is
   a function for `Field.read` or `Mark.make`; only a line of another build needs a class with `words`, `joint`, `scan`.
   `History` decides what a line means in its run, so no family does.
2. Its name in `FAMILIES`, before those whose head it shares: the first that can read a training line has the log. Then
   it needs `signatures`, text that only its lines have.
3. `tests/test_emitter_readers_<module>.py`: every field with a value written by hand.
"""

from __future__ import annotations

import difflib

from . import (
    argonne,
    deepspeed,
    gpt_neox,
    hugging_face,
    megatron,
    megatron_deepspeed,
    megatron_forks,
    mindspeed,
    ms_swift,
    nanogpt,
    nanotron,
    nemo1,
    nemo2,
    primus,
    torchtitan,
)
from .log import LogReader
from .table import Family

__all__ = ["FAMILIES", "Family", "LogReader", "reader"]

FAMILIES: tuple[Family, ...] = (
    nemo2.FAMILY,
    gpt_neox.FAMILY,
    primus.FAMILY,
    mindspeed.FAMILY,
    ms_swift.FAMILY,
    megatron_forks.FAMILY,
    megatron_deepspeed.FAMILY,
    megatron.FAMILY,
    argonne.FAMILY,
    nemo1.FAMILY,
    torchtitan.FAMILY,
    nanotron.FAMILY,
    nanogpt.FAMILY,
    hugging_face.FAMILY,
    deepspeed.FAMILY,
)
"""The more special first."""


def reader(name: str | None = None) -> LogReader:
    """A reader of one log: of the family with that name, or of whichever its first training line belongs to.

    Raises: ValueError if there is no such family.
    """
    if name is None:
        return LogReader(FAMILIES)
    for family in FAMILIES:
        if family.name == name:
            return LogReader([family])
    names = [family.name for family in FAMILIES]
    near = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
    raise ValueError(f"emitter.readers: a format has one of the known names (got {name!r}). {hint}")
