"""Megatron-LM, 2019 to 2026, and what prints its line as it is: Megatron-Bridge, FlagScale, Pai, epfLLM.

Its training line, its arguments, and the lines that tell the phase. Of several validation sets only the plain one and
the first have a metric. Throughput that is not in the line is taken from Megatron-Bridge's `Step Time` in front of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .. import catalog
from ..catalog import Metric
from . import deepspeed
from .lines import last_stamp
from .printed import anything
from .readings import Number, Reading, Scan, State
from .table import Family, Field, Mark, TrainingLine, known, number, squeezed
from .timers import TimersBlock, TimersLine

FIELDS = (
    Field(metric=catalog.CONSUMED_SAMPLES, keys=("consumed samples",)),
    Field(metric=catalog.STEP_DURATION, keys=("elapsed time per iteration (ms)",)),
    Field(metric=catalog.STEP_DURATION, keys=("elapsed time per iteration (s)",), factor=1000),
    Field(metric=catalog.THROUGHPUT_TFLOPS, keys=("throughput per GPU (TFLOP/s/GPU)",)),
    Field(metric=catalog.LEARNING_RATE, keys=("learning rate",)),
    Field(metric=catalog.GLOBAL_BATCH_SIZE, keys=("global batch size",)),
    Field(metric=catalog.LOSS, keys=("lm loss", "loss")),
    Field(metric=catalog.LOSS_SCALE, keys=("loss scale",)),
    Field(metric=catalog.GRAD_NORM, keys=("grad norm",)),
    Field(metric=catalog.NUM_ZEROS, keys=("num zeros",)),
    Field(metric=catalog.PARAMS_NORM, keys=("params norm",)),
    Field(metric=catalog.SKIPPED_ITERS, keys=("number of skipped iterations",)),
    Field(metric=catalog.TOKENS_PER_SEC, keys=("toks/s",)),
    Field(metric=None, keys=("number of nan iterations",)),  # of skipped iterations only, so no signal of its own
    Field(metric=None, keys=("skipped samples", "consumed bins", "decoupled learning rate", "max attention logit")),
    Field(metric=None, keys=("energy per GPU (J/iter/GPU)", "power per GPU (W/GPU)")),
    Field(metric=None, keys=("sop loss", "nsp loss", "indexer loss", *(f"mtp_{depth} loss" for depth in range(1, 8)))),
    Field(metric=None, keys=("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss")),
    Field(metric=None, keys=("toks/s/gpu", "compute_toks/s", "compute_toks/s/gpu", "actual_toks/s")),
    Field(metric=None, keys=("actual_toks/s/gpu", "avg_seq_len", "packing_eff"), read=anything),
)

HEAD = re.compile(r"iteration(?<![\w/-]iteration) *(?P<iteration>\d{1,18})/ *(?P<target>\d{1,18}) *\|", re.ASCII)

TRAINING = TrainingLine(
    words=("iteration",), head=HEAD, fields=FIELDS, last="number of nan iterations", silent_nan=True, until="time (ms)"
)

EXAMPLE = (
    " [2031-05-06 07:08:09.000321] iteration      120/    9000 | consumed samples:         3840 | "
    "elapsed time per iteration (ms): 2000.0 | throughput per GPU (TFLOP/s/GPU): 222.5 | learning rate: 1.500000E-04 | "
    "global batch size:    32 | lm loss: 3.250000E+00 | loss scale: 1.0 | grad norm: 0.875 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def _argument(match: re.Match[str]) -> Reading:
    value = number(match[2].strip())
    return Reading(kind="settings", settings={match[1]: value} if isinstance(value, int) else {})


def _moment(match: re.Match[str]) -> Reading:
    name, stamp = match[1], last_stamp(match.string)
    if name.startswith("exiting program") or name == "after training is done":
        return Reading(kind="end", stamp=stamp)
    return Reading(kind="phase", phase="train" if name == "before the start of training step" else None, stamp=stamp)


def _validation(match: re.Match[str]) -> Reading:
    loss = number(match["loss"])
    if loss is None or match["name"] not in (None, "0") or match["set"] not in (None, "validation"):
        return Reading(kind="known")
    return Reading(kind="validation", iteration=int(match["iteration"]), values={catalog.VALIDATION_LOSS: loss})


def _guard(match: re.Match[str]) -> Reading:
    value = number(match[1])
    metric = catalog.GRAD_NORM if "grad" in match[3] else catalog.LOSS
    return Reading(kind="guard", iteration=int(match[2]), values={} if value is None else {metric: value})


MARKS = (
    Mark(
        words=("world size",),
        pattern=re.compile(r"using world size: *(\d{1,18})(?=[,\s])", re.ASCII),
        begin=re.compile(r"using world size:? *\d*$", re.ASCII),
        make=lambda match: Reading(
            kind="start", settings={"world_size": int(match[1])}, stamp=last_stamp(match.string)
        ),
    ),
    Mark(
        words=("....",),
        pattern=re.compile(r"(?<!\S)([A-Za-z_]\w*) \.{3,} (\S.*)", re.ASCII),
        make=_argument,
        begin=re.compile(r"^\s*[A-Za-z_]\w* \.{3,}\s*$", re.ASCII),
    ),
    Mark(words=("datetime",), pattern=re.compile(r"\[([^\[\]]+)\] datetime: ?[\d :.-]*", re.ASCII), make=_moment),
    Mark(
        words=("iteration",),
        pattern=re.compile(
            r"(?<!\S)valid(?:ation)?(?:-(?P<name>\S+))? loss at iteration *(?P<iteration>\d{1,18})"
            r"(?: on (?P<set>\w+) set)? *\|(?:.{0,1024}\|)? *lm *loss *value: *(?P<loss>[^ |]+) *\|",
            re.ASCII,
        ),
        make=_validation,
        begin=re.compile(r"(?<!\S)valid(?:ation)?(?:-\S+)? loss at iteration", re.ASCII),
    ),
    Mark(
        words=("checkpoint",),
        pattern=re.compile(r"successfully loaded checkpoint .{0,1024}at iteration *(\d{1,18})\b", re.ASCII),
        make=lambda match: Reading(kind="resume", iteration=int(match[1]), stamp=last_stamp(match.string)),
        begin=re.compile(r"successfully loaded checkpoint ", re.ASCII),
    ),
    Mark(
        words=("checkpoint",),
        pattern=re.compile(r"(?<!\w)saving checkpoint at iteration *(\d{1,18})(?=\s)", re.ASCII),
        begin=re.compile(r"(?<!\w)saving checkpoint at iteration[ \d]*$", re.ASCII),
        make=lambda match: Reading(kind="saving", iteration=int(match[1]), stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("checkpoint",),
        pattern=re.compile(r"successfully saved checkpoint (?:at|from) iteration *(\d{1,18})(?=\s)", re.ASCII),
        begin=re.compile(r"successfully saved checkpoint [a-z]*[ a-z]*[ \d]*$", re.ASCII),
        make=lambda match: Reading(kind="checkpoint", iteration=int(match[1]), stamp=last_stamp(match.string)),
    ),
    Mark(words=("checkpoint",), pattern=re.compile(r"loading checkpoint from |deleted checkpoint "), make=known),
    Mark(
        words=("training ...",),
        pattern=re.compile(r"(?<!\S)training \.\.\.\s*$"),
        make=lambda match: Reading(kind="phase", phase="train", stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("Evaluating",),
        pattern=re.compile(r"(?<!\S)Evaluating (?:on \d+ samples|iter \d+/\d+)", re.ASCII),
        make=lambda match: Reading(kind="phase", phase="evaluate", stamp=last_stamp(match.string)),
    ),
    Mark(
        words=("Unexpected result",),
        pattern=re.compile(r"Unexpected result (\S{1,30}) on rank \d+ at iteration #(\d{1,18})(.*)", re.ASCII),
        make=_guard,
    ),
    Mark(
        words=("Step Time",),
        pattern=re.compile(r"Step Time : [\d.]+s GPU utilization: (\d+(?:\.\d*)?) ?(?:MODEL_)?TFLOP/s/GPU", re.ASCII),
        begin=re.compile(r"Step Time : [\d.]+s GPU utiliz", re.ASCII),
        make=lambda match: Reading(kind="ahead", values={catalog.THROUGHPUT_TFLOPS: float(match[1])}),
    ),
    Mark(words=("Rtt/Rnk",), pattern=re.compile(r"M[nx]Rtt/Rnk: "), make=known),
)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """`[Rank 3] (after 20 iterations) memory (MB) | allocated: .. | max allocated: ..`, of one rank or more."""

    words: tuple[str, ...] = ("memory (",)
    joint: str = ""

    def scan(self, text: str, ends: frozenset[str]) -> Scan | None:
        """The largest values of the line."""
        head = _MEMORY.search(text)
        if head is None:
            return None
        values: dict[Metric, Number] = {}
        end = 0
        for match in _MEMORY_PAIR.finditer(text, head.end()):
            end = match.end()
            key = squeezed(match[1])
            unit = 10**9 if key.endswith("gigabytes") else MEMORY_UNITS[head[2]]
            if (name := key.removeprefix("mem").removesuffix("gigabytes")) in MEMORY_KEYS:
                metric, divisor = MEMORY_KEYS[name]
                values[metric] = max(values.get(metric, 0), float(match[2]) * unit / divisor)
        reading = Reading(kind="memory" if values else "known", iteration=int(head[1]), values=values)
        return Scan(state=State.ENOUGH, readings=(reading,), progress=end, begin=head.start())


MEMORY_KEYS: dict[str, tuple[Metric, int]] = {
    "maxallocated": (catalog.MEMORY_ALLOCATED, 1024**3),
    "maxreserved": (catalog.MEMORY_MAX_RESERVED, 1),
    "maxcached": (catalog.MEMORY_MAX_RESERVED, 1),
}
"""The metric, and how many bytes are one of its unit."""

MEMORY_UNITS = {"MB": 1024**2, "GB": 10**9}
"""Bytes of a unit in the head. Megatron's megabytes are 1024²; the gigabytes of Megatron-Bridge, which are in its keys
too, are 10⁹."""

_MEMORY = re.compile(r"(?:\[Rank \d+\] \()?after (\d{1,18}) iterations\)? memory \(([MG]B)\)(?= ?\|)", re.ASCII)
_MEMORY_PAIR = re.compile(r"\|\s*([a-z][a-z -]*?): *(\d+(?:\.\d*)?)(?=\s*(?:\||\[|$))", re.ASCII)

OTHERS = (TimersBlock(), TimersLine(), Memory(), *MARKS, *deepspeed.BESIDE)
"""Also for every fork; any of them may run on DeepSpeed."""

FAMILY = Family(
    name="megatron",
    title="Megatron-LM, 2019 to 2026; Megatron-Bridge, FlagScale, Pai, epfLLM",
    example=EXAMPLE,
    training=(TRAINING,),
    others=OTHERS,
)
