"""The first iteration of a process, which some releases report twice; what is skipped, and what is NaN.

Megatron core 0.16 and later print the first iteration on its own and report it again in the next line. Such a line, of
those that count skips, is known by being the process's first iteration in a layout with microseconds, which came with
the same release, or by an iteration out of turn: no multiple of the argument log_interval, or, with microseconds, of
the distance to the next line. Its skips are taken off the next line's, and its time out of the mean that the next line
prints, as well as out of the rates that are computed from that, where what is left is a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .. import catalog
from ..catalog import Metric
from .readings import Number, Reading

RATES = (catalog.THROUGHPUT_TFLOPS, catalog.TOKENS_PER_SEC, catalog.MFU)
"""Means over the same time as the duration of a step. What is printed for one GPU is one of them."""


class FirstLine(NamedTuple):
    """The first training line of a process, and the iterations that it reports."""

    iteration: int
    skipped: int
    """As printed."""
    step_ms: float
    microseconds: bool
    """Whether its time has them."""
    length: int | None
    """How many iterations they are; None if nothing tells."""

    def is_repeated(self, following: Reading, distance: int, arguments: Mapping[str, int]) -> bool:
        """Whether it was one iteration on its own, which the following line reports again."""
        if catalog.SKIPPED_ITERS not in following.values:
            return False
        interval = arguments.get("log_interval")
        out_of_turn = self.iteration % (interval or distance) != 0
        return (out_of_turn and (bool(interval) or self.microseconds)) or (self.microseconds and self.length == 1)


def without_first(
    values: dict[Metric, Number], reading: Reading, length: int, first_ms: float
) -> Mapping[Metric, Number]:
    """Take the first iteration out of the printed means: those of the job in place; those of one GPU are the answer."""
    mean_ms = values[catalog.STEP_DURATION]
    rest_ms = ((length + 1) * mean_ms - first_ms) / length
    if not 0 < rest_ms < math.inf:  # nor if one of them is NaN
        return reading.per_gpu
    values[catalog.STEP_DURATION] = rest_ms
    faster = mean_ms / rest_ms
    values.update({rate: values[rate] * faster for rate in RATES if rate in reading.values})
    return {rate: value * faster for rate, value in reading.per_gpu.items()}


def correct(values: dict[Metric, Number], silent_nan: bool, covered: int | None, repeated: FirstLine | None) -> None:
    """Take out of printed values what was printed before, and put in the loss that was not printed."""
    skipped = int(values.get(catalog.SKIPPED_ITERS, 0))
    if repeated and skipped:
        values[catalog.SKIPPED_ITERS] = max(0, skipped - repeated.skipped)
    wholly_skipped = skipped > 0 if covered is None else skipped >= covered
    if wholly_skipped:
        if values.get(catalog.LOSS) == 0:
            del values[catalog.LOSS]
    elif silent_nan:
        values.setdefault(catalog.LOSS, math.nan)
