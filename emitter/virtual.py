"""A meter that whoever asks collects from: what a scrape would find, without SDK, thread or clock.

It knows the kinds of instruments that `instruments` creates. Needs the OpenTelemetry API only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.metrics import (
    CallbackOptions,
    Histogram,
    NoOpHistogram,
    NoOpMeter,
    ObservableCounter,
    ObservableGauge,
    Observation,
)

from . import catalog
from .catalog import Kind, Metric

Labels = tuple[tuple[str, str], ...]

Values = tuple[float, ...]
"""One value; of a histogram how many values are below each bound, how many there are, twice, and their sum."""

Point = tuple[Metric, Labels, Values]
"""A metric, the attributes of the point, and its values."""

_Callback = Callable[[CallbackOptions], Iterable[Observation]]

_OPTIONS = CallbackOptions()


class VirtualMeter(NoOpMeter):
    """Instruments of one run, and their points whenever they are asked for."""

    def __init__(self) -> None:
        super().__init__(__name__)
        self._observables: list[tuple[Metric, _Callback]] = []
        self._histograms: list[_Buckets] = []

    def collect(self, *, time_only: bool = False) -> list[Point]:
        """The present points.

        `time_only` says that nothing was recorded since the last time. Then only counters are asked, since what a
        hook books for the time that passes is a sum.
        """
        points: list[Point] = []
        for metric, callback in self._observables:
            if not time_only or metric.kind is Kind.COUNTER:
                for observed in callback(_OPTIONS):
                    points.append((metric, _labels(observed.attributes), (observed.value,)))
        if not time_only:
            for histogram in self._histograms:
                points += histogram.points()
        return points

    def create_observable_counter(
        self, name: str, callbacks: Sequence[Any] | None = None, unit: str = "", description: str = ""
    ) -> ObservableCounter:
        """A counter that is asked at each collection."""
        self._observe(name, callbacks)
        return super().create_observable_counter(name, callbacks, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[Any] | None = None, unit: str = "", description: str = ""
    ) -> ObservableGauge:
        """A gauge that is asked at each collection."""
        self._observe(name, callbacks)
        return super().create_observable_gauge(name, callbacks, unit, description)

    def create_histogram(self, name: str, *args: Any, **kwargs: Any) -> Histogram:
        """A histogram with the bounds of the catalog."""
        self._histograms.append(_Buckets(catalog.get(name)))
        return self._histograms[-1]

    def _observe(self, name: str, callbacks: Sequence[Any] | None) -> None:
        metric = catalog.get(name)
        self._observables += [(metric, callback) for callback in callbacks or ()]


class _Buckets(NoOpHistogram):
    """A histogram's buckets, by attributes."""

    def __init__(self, metric: Metric) -> None:
        super().__init__(metric.name, metric.otel_unit, metric.meaning)
        self._metric = metric
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def record(self, amount: float, attributes: Any = None, context: Context | None = None) -> None:
        """Count a value in its bucket."""
        labels = _labels(attributes)
        counts = self._counts.setdefault(labels, [0] * (len(self._metric.bounds) + 1))
        for place in range(bisect_left(self._metric.bounds, amount), len(counts)):
            counts[place] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + amount

    def points(self) -> list[Point]:
        """The present points."""
        return [
            (self._metric, labels, (*counts, counts[-1], self._sums[labels])) for labels, counts in self._counts.items()
        ]


def _labels(attributes: Any) -> Labels:
    return tuple((name, str(value)) for name, value in attributes.items()) if attributes else ()
