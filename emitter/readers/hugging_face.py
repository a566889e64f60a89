"""Hugging Face's Trainer and what is built on it, as dictionaries: TRL, LLaMA-Factory, ms-swift; as JSON lines, too.

The Trainer's own dictionary does not tell the iteration, which then is that of the progress bar before it; without a
bar it cannot be placed. Its filter replaces a loss that is not finite, so that a dead run reports 0 and a gradient
norm that is NaN.
"""

from __future__ import annotations

import math
import re

from .. import catalog
from ..catalog import Metric
from .lines import last_stamp
from .printed import anything, elapsed, whole
from .readings import Number, Reading
from .table import Family, Field, Mark, TrainingLine, Values, number

FIELDS = (
    Field(metric=catalog.ITERATION, keys=("global_step/max_steps", "iteration", "current_steps"), read=whole),
    Field(metric=catalog.TARGET_ITERATION, keys=("/", "total_steps"), read=whole),  # behind the iteration
    Field(metric=catalog.LOSS, keys=("lm loss", "loss")),
    Field(metric=catalog.GRAD_NORM, keys=("grad_norm",)),
    Field(metric=catalog.LEARNING_RATE, keys=("learning_rate", "lr")),
    Field(metric=catalog.LOSS_SCALE, keys=("loss_scale",)),
    Field(metric=catalog.CONSUMED_TOKENS, keys=("num_input_tokens_seen", "num_tokens", "total_tokens"), read=whole),
    Field(metric=catalog.CONSUMED_SAMPLES, keys=("consumed_samples",), read=whole),
    Field(metric=catalog.MEMORY_MAX_RESERVED, keys=("memory(GiB)", "vram_reserved"), factor=1024**3),
    Field(metric=catalog.MEMORY_ALLOCATED, keys=("vram_allocated",)),
    Field(metric=catalog.STEP_DURATION, keys=("elapsed_time",), read=elapsed, factor=1000, cumulative=True),
    # Means since the start, or of no interest to a run.
    Field(metric=None, keys=("train_speed(iter/s)", "train_speed(s/it)", "throughput", "token_acc", "epoch")),
    Field(metric=None, keys=("percentage", "remaining_time"), read=anything),
)

_BAR = re.compile(r"^\s*(?:Train: +)?\d{1,3}%\|[^|\[]*\| *(\d{1,18})/(\d{1,18}) \[([\d:]+)<", re.ASCII)
_ITERATION = re.compile(r"['\"](?:global_step/max_steps|iteration|current_steps)['\"]: ['\"]?(\d{1,18})", re.ASCII)


def _bar(match: re.Match[str]) -> tuple[dict[Metric, Number], dict[Metric, Number]]:
    """Values and totals of a progress bar."""
    values: dict[Metric, Number] = {catalog.ITERATION: int(match[1]), catalog.TARGET_ITERATION: int(match[2])}
    passed_s = elapsed(match[3])
    return values, {} if passed_s is None else {catalog.STEP_DURATION: passed_s * 1000}


def _ahead(match: re.Match[str]) -> Reading:
    values, totals = _bar(match)
    return Reading(kind="ahead", values=values, cumulative=totals)


class Dictionary(TrainingLine):
    """A training line that is a dictionary, perhaps behind a progress bar."""

    def _reading(self, text: str, begin: int, head: re.Match[str], values: Values, last: bool) -> Reading:
        if values.plain.get(catalog.LOSS) == 0 and math.isnan(values.plain.get(catalog.GRAD_NORM, 0)):
            values.plain[catalog.LOSS] = math.nan
        if bar := _BAR.match(text, 0, head.start()):
            ahead, totals = _bar(bar)
            values.plain = {**ahead, **values.plain}
            values.cumulative = {**totals, **values.cumulative}
        return super()._reading(text, begin, head, values, last)


TRAINING = Dictionary(
    words=("'loss'", '"loss"', "'lm loss'", '"lm loss"'),
    head=re.compile(r"\{(?=['\"])"),
    fields=FIELDS,
    pair=re.compile(r"((?<=['\"])[^'\"{}]+(?=['\"]: )|(?<=\d)/(?=\d))(?:['\"]: ['\"]?)?([^'\",}/]+)(?=['\",}/])"),
    end="}",
)


def _validation(match: re.Match[str]) -> Reading:
    loss = number(match[1])
    iteration = _ITERATION.search(match[0])
    return Reading(
        kind="validation",
        iteration=int(iteration[1]) if iteration else None,
        values={} if loss is None else {catalog.VALIDATION_LOSS: loss},
        stamp=last_stamp(match.string[: match.start()]),
    )


def _setting(match: re.Match[str]) -> Reading:
    name = "train_iters" if match[1] == "optimization steps" else "global_batch_size"
    return Reading(kind="settings", settings={name: int(match[2].replace(",", ""))})


OTHERS = (
    Mark(
        words=("eval_loss",),
        pattern=re.compile(r"\{[^{}]*['\"]eval_loss['\"]: ['\"]?([^'\",}]{1,64})[^{}]{0,4096}\}"),
        begin=re.compile(r"\{['\"]eval_"),
        make=_validation,
    ),
    Mark(
        words=("train_runtime",),
        pattern=re.compile(r"\{['\"]train_runtime['\"]: "),
        make=lambda match: Reading(kind="end", stamp=last_stamp(match.string[: match.start()])),
    ),
    Mark(
        words=("Running training",),
        pattern=re.compile(r"\*{5} Running training \*{5}"),
        make=lambda match: Reading(kind="start", stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("Total optimization steps", "Total train batch size"),
        pattern=re.compile(r"Total (optimization steps|train batch size \([^)]*\)) = ([\d,]{1,24})", re.ASCII),
        make=_setting,
    ),
    Mark(
        words=("Continuing training from global step",),
        pattern=re.compile(r"Continuing training from global step (\d{1,18})", re.ASCII),
        make=lambda match: Reading(kind="resume", iteration=int(match[1]), stamp=last_stamp(match.string)),
    ),
    Mark(words=("%|",), pattern=_BAR, make=_ahead),
)

FAMILY = Family(
    name="hugging-face",
    title="Hugging Face's Trainer and what is built on it: TRL, LLaMA-Factory, ms-swift",
    example=(
        "{'loss': 3.25, 'grad_norm': 0.875, 'learning_rate': 0.00015, 'epoch': 0.5, "
        "'global_step/max_steps': '120/9000', 'percentage': '1.33%', 'elapsed_time': '4m 0s', "
        "'remaining_time': '4h 56m 0s', 'memory(GiB)': 24.5, 'train_speed(iter/s)': 0.5}"
    ),
    training=(TRAINING,),
    others=OTHERS,
    signatures=("'learning_rate'", '"learning_rate"', '"lr"'),
)
