"""One process of a run, from its first line to its last: what only the lines before tell about a training line.

The rules are listed in `history`, which tells one process from the next.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping

from .. import catalog
from ..catalog import Kind, Metric
from .echoes import Echoes
from .elapsed import ElapsedClock
from .intervals import Interval, correct, without_first
from .readings import Number, Reading

SOURCES = 4096
"""Sources, and REPORTED iterations, that are remembered: memory is constant in the length of a log."""

REPORTED = 256


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
        self._last: Interval | None = None
        self._target: Number | None = None
        self._reported: OrderedDict[int, Mapping[Metric, Number]] = OrderedDict()
        self._sources: OrderedDict[str, int] = OrderedDict()
        """The last iteration of each."""
        self._totals: dict[Metric, Number] = {}
        self._elapsed = ElapsedClock()
        self._validated: Number | None = None
        self._memory: tuple[int | None, dict[Metric, Number]] = (None, {})

    def has_results_of(self, source: str) -> bool:
        """Whether a source has printed a training line."""
        return source in self._sources

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
        last = self._last
        values: Mapping[Metric, Number] = reading.values
        if reading.per_gpu:
            values = {**values, **reading.per_gpu}
        target = values.get(catalog.TARGET_ITERATION)
        if last is not None and iteration <= last.iteration:
            if target == self._target:
                before = self._sources.get(source)
                if (before is None or before < iteration) or _same(
                    self._reported.get(iteration), values, sure=bool(source)
                ):
                    _keep(self._sources, source, iteration)
                    return False
            if not (reading.rounded and iteration == last.iteration):
                return None
        _keep(self._sources, source, iteration)
        self._target = target
        self._reported[iteration] = values
        if len(self._reported) > REPORTED:
            self._reported.popitem(last=False)
        return True

    def result(
        self,
        reading: Reading,
        iteration: int,
        clock: tuple[float | None, bool],
        arguments: Mapping[str, int],
    ) -> tuple[dict[Metric, Number], float | None]:
        """The values of a training line that is news, and how long they took. `clock` is its time."""
        seconds, microseconds = clock
        values: dict[Metric, Number] = {catalog.ITERATION: iteration, **reading.values}
        if catalog.SKIPPED_ITERS in values and not math.isfinite(values[catalog.SKIPPED_ITERS]):
            del values[catalog.SKIPPED_ITERS]
        for metric, value in self.ahead.items():
            values[metric] = max(value, values.get(metric, 0)) if _counts(metric) else values.get(metric, value)
        last = self._last
        length = self._first_length(iteration, arguments) if last is None else iteration - last.iteration or None
        elapsed_ms = None
        if self._ahead_totals or reading.cumulative:
            totals = {**self._ahead_totals, **reading.cumulative}
            elapsed_ms = totals.pop(catalog.STEP_DURATION, None)
            self._add_totals(values, totals)
        passed_s = math.nan
        if catalog.STEP_DURATION not in values:
            if last and last.seconds is not None and seconds is not None and length:
                values[catalog.STEP_DURATION] = max(0.0, seconds - last.seconds) / length * 1000
            elif elapsed_ms is not None and (interval := self._elapsed.interval(iteration, elapsed_ms)):
                values[catalog.STEP_DURATION], passed_s = interval
        step_ms = values.get(catalog.STEP_DURATION, math.nan)
        skipped = int(values.get(catalog.SKIPPED_ITERS, 0))
        self._last = Interval(iteration, skipped, step_ms, seconds, microseconds, length, last is None)
        per_gpu = reading.per_gpu
        covered = length
        repeated = None
        if last and last.first and length and last.is_repeated(reading, length, arguments):
            repeated, covered = last, length + 1
            if catalog.STEP_DURATION in reading.values:
                per_gpu = without_first(values, reading, length, last.step_ms)
                step_ms = values[catalog.STEP_DURATION]
        if self.ahead or self._ahead_totals:
            self.ahead, self._ahead_totals = {}, {}
        self.results += 1
        if arguments:
            _derive(values, step_ms, per_gpu, arguments)
        if skipped or (reading.silent_nan and catalog.LOSS not in values):
            correct(values, reading.silent_nan, covered, repeated)
        length_s = passed_s if math.isfinite(passed_s) else (length or math.nan) * step_ms / 1000
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

    def _add_totals(self, values: dict[Metric, Number], totals: Mapping[Metric, Number]) -> None:
        for metric, total in totals.items():
            values.setdefault(metric, max(0, total - self._totals.get(metric, 0)))
            self._totals[metric] = total


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
    """Remember the iteration of a source; of too many sources, the last ones."""
    iterations[source] = iteration
    iterations.move_to_end(source)
    if len(iterations) > SOURCES:
        iterations.popitem(last=False)


def _counts(metric: Metric) -> bool:
    return metric.kind is Kind.COUNTER


def _same(known: Mapping[Metric, Number] | None, values: Mapping[Metric, Number], *, sure: bool) -> bool:
    """Whether two lines about one iteration are the same report."""
    if known is None:
        return False
    metrics = (catalog.LOSS,) if not sure else {*known, *values}
    return all(_equal(known.get(metric), values.get(metric)) for metric in metrics)


def _equal(one: Number | None, other: Number | None) -> bool:
    return one == other or (one is not None and other is not None and math.isnan(one) and math.isnan(other))
