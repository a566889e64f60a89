"""One process of a run, from its first line to its last: what only the lines before tell about a training line.

The rules are listed in `history`, which tells one process from the next.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

from .. import catalog
from ..catalog import Kind, Metric
from .echoes import SOURCES, Echoes
from .elapsed import ElapsedClock
from .intervals import FirstLine, correct, without_first
from .lines import Clock
from .readings import Number, Reading

REPORTED = 256
"""Iterations, and SOURCES, that are remembered: memory is constant in the length of a log."""


class Process:
    """What the lines of one process have told so far."""

    def __init__(self, ahead: Mapping[Metric, Number] | None = None) -> None:
        self.results = 0
        self.begin: int | None = None
        """Iteration that it started from, if the log tells."""
        self.echoes = Echoes()
        self.guarded: int | None = None
        """Iteration at which a guard stopped it."""
        self.ahead: dict[Metric, Number] = {**ahead} if ahead else {}
        """Values that were printed before the training line that they are of."""
        self._ahead_totals: dict[Metric, Number] = {}
        self._places: OrderedDict[str, int] = OrderedDict()
        """Iterations that were counted ahead, by source."""
        self._iteration: int | None = None
        """Of the last training line; and its time."""
        self._seconds: float | None = None
        self._first: FirstLine | None = None
        """The last training line, if it was the first one."""
        self._target: Number | None = None
        self._reported: OrderedDict[int, Reading] = OrderedDict()
        self._sources: OrderedDict[str, int] = OrderedDict()
        """The last iteration of each."""
        self._totals: dict[Metric, Number] = {}
        self._elapsed = ElapsedClock()
        self._validated: Number | None = None
        self._memory: tuple[int | None, dict[Metric, Number]] = (None, {})

    def has_results_of(self, source: str) -> bool:
        """Whether a source has printed a training line."""
        return source in self._sources

    def awaits(self, reading: Reading, iteration: int, source: str) -> bool:
        """Whether a source that lags behind has yet to print a training line, which another source has printed."""
        before = self._sources.get(source)
        if before is None or before >= iteration or not self._was_reported(reading, iteration, sure=False):
            return False
        _keep(self._sources, source, iteration)
        return True

    def place(self, reading: Reading, source: str) -> int | None:
        """The iteration that a training line is about, its own or the one counted ahead; None if nothing tells."""
        if reading.iteration is not None:
            return reading.iteration
        ahead = self._places.get(source, self.ahead.get(catalog.ITERATION))
        return None if ahead is None else int(ahead)

    def keep_place(self, reading: Reading, source: str) -> None:
        """Remember which iteration a source counts ahead, if it does."""
        if catalog.ITERATION in reading.values:
            _keep(self._places, source, int(reading.values[catalog.ITERATION]))

    def keep_ahead(self, reading: Reading) -> None:
        """Remember values of the training line that is to come."""
        for metric, value in reading.values.items():
            self.ahead[metric] = value + (self.ahead.get(metric, 0) if _counts(metric) else 0)
        self._ahead_totals.update(reading.cumulative)

    def is_news(self, reading: Reading, iteration: int, source: str) -> bool | None:
        """Whether a training line tells something; None if another process has printed it."""
        if self._places:
            self._places.pop(source, None)
        last = self._iteration
        target = reading.values.get(catalog.TARGET_ITERATION)
        if last is not None and iteration <= last:
            if target == self._target:
                before = self._sources.get(source)
                if before is None or before < iteration or self._was_reported(reading, iteration, sure=bool(source)):
                    _keep(self._sources, source, iteration)
                    return False
            if not (reading.rounded and iteration == last):
                return None
        _keep(self._sources, source, iteration)
        self._target = target
        self._reported[iteration] = reading
        if len(self._reported) > REPORTED:
            self._reported.popitem(last=False)
        return True

    def _was_reported(self, reading: Reading, iteration: int, *, sure: bool) -> bool:
        """Whether a training line says what another one has said about the same iteration."""
        known = self._reported.get(iteration)
        if known is None:
            return False
        one, other = ({**line.values, **line.per_gpu} for line in (known, reading))
        metrics = (catalog.LOSS,) if not sure else {*one, *other}
        return all(_equal(one.get(metric), other.get(metric)) for metric in metrics)

    def result(
        self,
        reading: Reading,
        iteration: int,
        clock: Clock,
        arguments: Mapping[str, int],
    ) -> tuple[dict[Metric, Number], float | None]:
        """The values of a training line that is news, and how long they took. `clock` is its time."""
        seconds, microseconds, _ = clock
        values: dict[Metric, Number] = {catalog.ITERATION: iteration, **reading.values}
        skipped = values.get(catalog.SKIPPED_ITERS, 0)
        if skipped and not math.isfinite(skipped):
            skipped = 0
            del values[catalog.SKIPPED_ITERS]
        if self.ahead:
            self._put_ahead(values)
            skipped = values.get(catalog.SKIPPED_ITERS, 0)
        last = self._iteration
        length = self._first_length(iteration, arguments) if last is None else iteration - last or None
        elapsed_ms = None
        if self._ahead_totals or reading.cumulative:
            elapsed_ms = self._take_totals(values, reading)
        length_s = math.nan
        if catalog.STEP_DURATION in values:
            step_ms = values[catalog.STEP_DURATION]
        elif self._seconds is not None and seconds is not None and length:
            step_ms = values[catalog.STEP_DURATION] = max(0.0, seconds - self._seconds) / length * 1000
        elif elapsed_ms is not None and (interval := self._elapsed.interval(iteration, elapsed_ms)):
            step_ms, length_s = interval
            values[catalog.STEP_DURATION] = step_ms
        else:
            step_ms = math.nan
        self._iteration, self._seconds = iteration, seconds
        per_gpu = reading.per_gpu
        covered = length
        first, self._first = self._first, None
        repeated = None
        if last is None:
            self._first = FirstLine(iteration, int(skipped), step_ms, microseconds, length)
        elif first and length and first.is_repeated(reading, length, arguments):
            repeated, covered = first, length + 1
            if catalog.STEP_DURATION in reading.values:
                per_gpu = without_first(values, reading, length, first.step_ms)
                step_ms = values[catalog.STEP_DURATION]
        if arguments:
            _derive(values, step_ms, per_gpu, arguments)
        if skipped or (reading.silent_nan and catalog.LOSS not in values):
            correct(values, reading.silent_nan, covered, repeated)
        self.results += 1
        if length and math.isnan(length_s):
            length_s = length * step_ms / 1000
        return values, max(0.0, length_s) if math.isfinite(length_s) else None

    def is_new_validation(self, loss: Number) -> bool:
        """Whether a validation loss in a training line is news: it stays there until the next validation."""
        if _equal(loss, self._validated):
            return False
        self._validated = loss
        return True

    def more_memory(self, reading: Reading) -> dict[Metric, Number]:
        """Values that are larger than those of other ranks in the same report."""
        report, largest = self._memory
        if report is not None and reading.iteration is not None and reading.iteration < report:
            return {}
        if report != reading.iteration:
            largest = {}
        more = {metric: value for metric, value in reading.values.items() if value > largest.get(metric, -math.inf)}
        self._memory = (reading.iteration, {**largest, **more})
        return more

    def _first_length(self, iteration: int, arguments: Mapping[str, int]) -> int | None:
        begin = 0 if iteration == 1 else self.begin
        choices = (arguments.get("log_interval"), None if begin is None else iteration - begin)
        return min((choice for choice in choices if choice and choice > 0), default=None)

    def _put_ahead(self, values: dict[Metric, Number]) -> None:
        """What was counted ahead of a line counts where the line itself says less."""
        for metric, value in self.ahead.items():
            values[metric] = max(value, values.get(metric, 0)) if _counts(metric) else values.get(metric, value)
        self.ahead = {}

    def _take_totals(self, values: dict[Metric, Number], reading: Reading) -> Number | None:
        """What is new in totals; the time since the start is the answer."""
        totals = {**self._ahead_totals, **reading.cumulative}
        self._ahead_totals = {}
        elapsed_ms = totals.pop(catalog.STEP_DURATION, None)
        for metric, total in totals.items():
            values.setdefault(metric, max(0, total - self._totals.get(metric, 0)))
            self._totals[metric] = total
        return elapsed_ms


def _derive(
    values: dict[Metric, Number], step_ms: float, per_gpu: Mapping[Metric, Number], arguments: Mapping[str, int]
) -> None:
    """Add what is computed from the arguments and not printed."""
    if world_size := arguments.get("world_size"):
        for metric, value in per_gpu.items():
            values.setdefault(metric, value * world_size)
    if sequence := arguments.get("seq_length"):
        batch = values.get(catalog.GLOBAL_BATCH_SIZE, arguments.get("global_batch_size"))
        if batch is not None and step_ms > 0:
            values.setdefault(catalog.TOKENS_PER_SEC, batch * sequence / (step_ms / 1000))
        if catalog.CONSUMED_SAMPLES in values:
            values.setdefault(catalog.CONSUMED_TOKENS, values[catalog.CONSUMED_SAMPLES] * sequence)


def _keep(iterations: OrderedDict[str, int], source: str, iteration: int) -> None:
    """Remember the iteration of a source; of too many sources, those that came last."""
    iterations[source] = iteration
    if len(iterations) > SOURCES:
        iterations.popitem(last=False)


def _counts(metric: Metric) -> bool:
    return metric.kind is Kind.COUNTER


def _equal(one: Number | None, other: Number | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))
