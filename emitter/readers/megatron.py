"""Megatron-LM's log: its training line since 2021, its arguments, and the lines that tell the phase.

What cannot be seen in the lines, and how it is decided here:

- A loss that is NaN is not printed. A line without one reports a NaN, unless every iteration of its
  interval was skipped; then there is no loss, and a printed 0 is none either.
- Core 0.16 and later print the first iteration of a process on its own and report it again in the next
  line. Such a line is known by an iteration out of turn (no multiple of the log interval, which is the
  argument or else the distance to the next line), or by being the process's first iteration in a layout
  with microseconds, which came with the same release. Its skips are taken off the next line's.
- An interval is as long as the distance to the line before, or to the iteration that was loaded; for a
  first line of neither it is the argument log_interval.
- A run has ended when Megatron says so, and also when the scheduler cancelled it: somebody, or the time
  limit, stopped it, and nobody needs to be told. A failed node is no such end. A log that just stops
  leaves its run in the phase it was in, as it would look to whoever watches it.
- Of several validation sets only the plain one and the first have a metric.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone

from .. import catalog
from ..catalog import Metric
from ..records import LineCounts, Record

FIELDS: dict[str, tuple[Metric, int]] = {
    "consumed samples": (catalog.CONSUMED_SAMPLES, 1),
    "elapsed time per iteration (ms)": (catalog.STEP_DURATION, 1),
    "elapsed time per iteration (s)": (catalog.STEP_DURATION, 1000),
    "throughput per GPU (TFLOP/s/GPU)": (catalog.THROUGHPUT_TFLOPS, 1),
    "learning rate": (catalog.LEARNING_RATE, 1),
    "global batch size": (catalog.GLOBAL_BATCH_SIZE, 1),
    "lm loss": (catalog.LOSS, 1),
    "lm-loss": (catalog.LOSS, 1),
    "loss": (catalog.LOSS, 1),
    "loss scale": (catalog.LOSS_SCALE, 1),
    "grad norm": (catalog.GRAD_NORM, 1),
    "num zeros": (catalog.NUM_ZEROS, 1),
    "params norm": (catalog.PARAMS_NORM, 1),
    "number of skipped iterations": (catalog.SKIPPED_ITERS, 1),
}
"""Fields of the training line: key in the log, metric, and what to multiply with."""

LAST_FIELD = "number of nan iterations"
"""A line that has it is complete. It counts skipped iterations only, so it is no signal of its own."""

SETTINGS: dict[str, Metric] = {
    "world_size": catalog.WORLD_SIZE,
    "train_iters": catalog.TARGET_ITERATION,
    "global_batch_size": catalog.GLOBAL_BATCH_SIZE,
}
"""Arguments that are metrics."""

LONGEST = 4000
"""Characters of a line that are looked at, training lines apart: a matter of time with hostile input."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|[+-]?inf", re.ASCII | re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?", re.ASCII)
_TRAIN = re.compile(r"(?<![\w/-])iteration +(\d{1,18})/ *(\d{1,18}) \|", re.ASCII)

_WORLD_SIZE = re.compile(r"using world size: (\d{1,18})\b", re.ASCII)
_ARGUMENT = re.compile(r"(?<!\S)([A-Za-z_]\w*) \.{3,} (\S.*)", re.ASCII)
_LOADED = re.compile(r"successfully loaded checkpoint .*at iteration +(\d{1,18})\b", re.ASCII)
_MOMENT = re.compile(r"\[([^\[\]]+)\] datetime: ", re.ASCII)
_TRAINING = re.compile(r"(?<!\S)training \.\.\.\s*$", re.ASCII)
_EVALUATING = re.compile(r"(?<!\S)Evaluating (?:on \d+ samples|iter \d+/\d+)", re.ASCII)
_VALIDATION = re.compile(
    r"(?<!\S)valid(?:ation)?(?:-(?P<name>\S+))? loss at iteration +(?P<iteration>\d{1,18})(?: on (?P<set>\w+) set)? \|"
    r"(?:.*\|)? *lm loss value: *(?P<loss>[^ |]+) *\|",
    re.ASCII,
)
_SAVING = re.compile(r"(?<!\w)saving checkpoint at iteration ", re.ASCII)
_SAVED = re.compile(r"successfully saved checkpoint ", re.ASCII)
_CANCELLED = re.compile(r"slurmstepd: error: \*\*\* .*CANCELLED AT (?!.*NODE FAILURE)", re.ASCII)
_KNOWN = re.compile(
    r"-{20,}|time \(ms\)|times? across ranks \(ms\)|\.{3,}: |memory \(MB\) \|"
    r"|loading checkpoint from |deleted checkpoint ",
    re.ASCII,
)

_WORDS = ("...", "---", "datetime", "checkpoint", "loss at", "Evaluating", "world size", "(ms)", "(MB)", "slurmstepd")
"""One of these is in every line that the patterns above know; most lines of a log have none."""


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A training line as printed."""

    iteration: int
    target: int
    fields: dict[Metric, int | float]
    stamp_s: float | None
    microseconds: bool

    @property
    def skipped(self) -> int:
        skipped = self.fields.get(catalog.SKIPPED_ITERS, 0)
        return skipped if isinstance(skipped, int) else 0

    @property
    def step_ms(self) -> float:
        return self.fields.get(catalog.STEP_DURATION, math.nan)


@dataclass(frozen=True, kw_only=True)
class _Interval:
    """A training line in its process."""

    line: _Line
    length: int | None
    """Iterations since the line before; None if nothing tells."""
    first: bool
    """Whether it is the first line of its process."""


class MegatronLog:
    """Reads one log, line by line."""

    def __init__(self) -> None:
        self._arguments: dict[str, int] = {}
        self._phase = "startup"
        self._begin: int | None = None
        """Iteration that the process started from, if the log tells."""
        self._last: _Interval | None = None
        self._records = self._recognized = self._skipped = 0

    @property
    def counts(self) -> LineCounts:
        """What became of the lines so far."""
        return LineCounts(records=self._records, recognized=self._recognized, skipped=self._skipped)

    def read(self, line: bytes) -> list[Record]:
        """Records of one physical line. Never raises, whatever the bytes."""
        text = _ANSI.sub("", line.decode("utf-8", "replace")).strip("\0\ufeff\r\n")
        records: list[Record] | None = [self._train(printed) for printed in _training_lines(text)]
        if not records:
            records = self._other(text)
        if records is None:
            self._skipped += 1
            return []
        if any(record.kind in ("train", "validation") for record in records):
            self._records += 1
        else:
            self._recognized += 1
        return records

    def _train(self, line: _Line) -> Record:
        last = self._last
        if last and last.line.iteration >= line.iteration:  # a new process that did not say so
            last = self._begin = None
        repeated = None
        if last is None:
            length = self._first_length(line.iteration)
        else:
            length = line.iteration - last.line.iteration
            repeated = last.line if self._alone(last, length) else None
        self._last = _Interval(line=line, length=length, first=last is None)
        self._phase = "train"

        covered = None if length is None else length + (repeated is not None)
        seconds = math.nan if covered is None else covered * line.step_ms / 1000
        if repeated:
            seconds -= repeated.step_ms / 1000
        return Record(
            kind="train",
            values={
                catalog.ITERATION: line.iteration,
                catalog.TARGET_ITERATION: line.target,
                **_corrected(line, covered, repeated),
                **self._derived(line),
            },
            phase="train",
            stamp_s=line.stamp_s,
            length_s=max(0.0, seconds) if math.isfinite(seconds) else None,
        )

    def _first_length(self, iteration: int) -> int | None:
        begin = 0 if iteration == 1 else self._begin
        choices = (self._arguments.get("log_interval"), None if begin is None else iteration - begin)
        return min((choice for choice in choices if choice and choice > 0), default=None)

    def _alone(self, last: _Interval, distance: int) -> bool:
        """Whether the last line was a process's first iteration on its own, which the next line reports again."""
        interval = self._arguments.get("log_interval") or distance
        out_of_turn = last.line.iteration % interval != 0
        return last.first and (out_of_turn or (last.line.microseconds and last.length == 1))

    def _derived(self, line: _Line) -> dict[Metric, int | float]:
        """What Megatron computes from the arguments and does not print."""
        sequence = self._arguments.get("seq_length")
        if sequence is None:
            return {}
        derived: dict[Metric, int | float] = {}
        batch = line.fields.get(catalog.GLOBAL_BATCH_SIZE, self._arguments.get("global_batch_size"))
        if batch is not None and line.step_ms > 0:
            derived[catalog.TOKENS_PER_SEC] = batch * sequence / (line.step_ms / 1000)
        if catalog.CONSUMED_SAMPLES in line.fields:
            derived[catalog.CONSUMED_TOKENS] = line.fields[catalog.CONSUMED_SAMPLES] * sequence
        return derived

    def _other(self, text: str) -> list[Record] | None:
        """Records of a line that is no training line; None if nobody knows it."""
        text = text.rpartition("\r")[2][:LONGEST]  # what stays on the screen; the rest is a progress bar
        if not any(word in text for word in _WORDS):
            return None
        if match := _WORLD_SIZE.search(text):
            return [*self._argument("world_size", match[1]), self._to("startup", text)]
        if match := _ARGUMENT.search(text):
            return self._argument(match[1], match[2].strip())
        if match := _MOMENT.search(text):
            return [self._moment(match[1], text)]
        if match := _VALIDATION.search(text):
            return self._validation(match)
        if match := _LOADED.search(text):
            self._begin = int(match[1])
            return []
        if _TRAINING.search(text):
            return [self._to("train", text)]
        if _CANCELLED.search(text):
            return [self._to("ended", text)]
        if _EVALUATING.search(text):
            return [self._to("evaluate", text)]
        if _SAVING.search(text):
            return [self._to("checkpoint", text)]
        if _SAVED.search(text):
            return [self._to("train" if self._phase == "checkpoint" else self._phase, text)]
        return [] if _KNOWN.search(text) else None

    def _argument(self, name: str, value: str) -> list[Record]:
        if not _INTEGER.fullmatch(value):
            return []
        self._arguments[name] = int(value)
        return [Record(kind="run", values={SETTINGS[name]: int(value)})] if name in SETTINGS else []

    def _moment(self, name: str, text: str) -> Record:
        if name.startswith("exiting program") or name == "after training is done":
            return self._to("ended", text)
        return self._to("train" if name == "before the start of training step" else self._phase, text)

    def _to(self, phase: str, text: str) -> Record:
        """A change of phase. After the end only a new start counts: Megatron evaluates once more."""
        if self._phase == "ended" and phase in ("evaluate", "checkpoint"):
            phase = "ended"
        if phase in ("startup", "ended"):
            self._last = None
            self._begin = 0 if phase == "startup" else None
        self._phase = phase
        return Record(kind="phase", phase=phase, stamp_s=_stamp(text)[0])

    def _validation(self, match: re.Match[str]) -> list[Record]:
        loss = _number(match["loss"])
        if loss is None or match["name"] not in (None, "0") or match["set"] not in (None, "validation"):
            return []
        if self._phase == "evaluate":
            self._phase = "train"
        values = {catalog.ITERATION: int(match["iteration"]), catalog.VALIDATION_LOSS: loss}
        return [Record(kind="validation", values=values, phase=self._phase)]


def _training_lines(text: str) -> list[_Line]:
    """Complete training lines of a physical line: usually one, more where ranks were glued, none where one was cut."""
    matches = list(_TRAIN.finditer(text))
    ends = [match.start() for match in matches[1:]] + [len(text)]
    found = []
    begin = 0
    for match, end in zip(matches, ends, strict=False):
        fields = _fields(text[match.end() : end])
        if fields is not None:
            stamp_s, microseconds = _stamp(text[begin : match.start()])
            found.append(
                _Line(
                    iteration=int(match[1]),
                    target=int(match[2]),
                    fields=fields,
                    stamp_s=stamp_s,
                    microseconds=microseconds,
                )
            )
        begin = match.end()
    return found


def _fields(text: str) -> dict[Metric, int | float] | None:
    """Values of a line by metric; None if it is cut or garbled, since a loss that was cut off is no NaN."""
    fields: dict[Metric, int | float] = {}
    complete = False
    for part in text.split("|")[:-1]:
        key, _, printed = part.rpartition(":")
        key = key.strip()
        if key not in FIELDS and key != LAST_FIELD:
            continue
        number = _number(printed.strip())
        if number is None:
            return None
        if key == LAST_FIELD:
            complete = True
        else:
            metric, scale = FIELDS[key]
            fields.setdefault(metric, number * scale)
    return fields if complete else None


def _corrected(line: _Line, covered: int | None, repeated: _Line | None) -> dict[Metric, int | float]:
    """The printed values without what was printed before, and with the loss that was not printed."""
    values = dict(line.fields)
    if repeated and catalog.SKIPPED_ITERS in values:
        values[catalog.SKIPPED_ITERS] = max(0, line.skipped - repeated.skipped)
    wholly_skipped = line.skipped > 0 if covered is None else line.skipped >= covered
    if wholly_skipped:
        if values.get(catalog.LOSS) == 0:
            del values[catalog.LOSS]
    else:
        values.setdefault(catalog.LOSS, math.nan)
    return values


def _number(text: str) -> int | float | None:
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else None


def _stamp(text: str) -> tuple[float | None, bool]:
    """The last time of a text in seconds, and whether it has microseconds."""
    stamps = _STAMP.findall(text)
    if not stamps:
        return None, False
    day, hour, fraction = stamps[-1]
    try:
        moment = datetime.fromisoformat(f"{day} {hour}").replace(tzinfo=timezone.utc)
    except ValueError:
        return None, False
    return moment.timestamp() + float(f"0.{fraction or 0}"), len(fraction) == 6
