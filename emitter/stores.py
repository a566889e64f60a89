"""Where recorded values wait until a reader collects: plain Python, some tenths of a microsecond a value.

Standard library only. What is strange is left out and told once; how many points and values wait is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import isfinite
from threading import RLock
from typing import Any, SupportsFloat

from . import catalog
from .catalog import Metric
from .plain import AttributeValue
from .repeats import Once

Key = tuple[tuple[str, AttributeValue], ...]
"""Attributes of a point, sorted by name."""

QUEUE_LIMIT = 10_000
"""Histogram values that wait for a collection: a megabyte at most, and half a day of one value every 5 s."""

POINTS_LIMIT = 2_000
"""Points of one metric, as many as the SDK's specification allows: what makes more is no label."""


class Store:
    """Values of one metric, as the training loop left them."""

    def __init__(self, metric: Metric, once: Once) -> None:
        self.metric = metric
        self._once = once

    def take(self, value: SupportsFloat, key: Key = ()) -> None:
        """Keep a value."""
        try:
            number = float(value)
        except Exception as error:
            self._unreadable(error)
            return
        if isfinite(number):
            self._keep(number, key)
        else:
            self._lose(number, key)

    def _keep(self, number: float, key: Key) -> None:
        raise NotImplementedError

    def _overflow(self, key: Key) -> None:
        """Leave a value out that would make a point too many."""
        self._drop(f"a metric has {POINTS_LIMIT} points at most", str(dict(key)))

    def _lose(self, number: float, key: Key) -> None:
        """Deal with a NaN or Inf, which OpenTelemetry does not carry."""
        self._drop("a value must be finite", str(number))

    def _unreadable(self, error: Exception) -> None:
        """Deal with a value whose float() failed: a tensor's may raise anything."""
        self._drop("a value must be a number", repr(error))

    def _drop(self, rule: str, got: str) -> None:
        name = self.metric.name
        self._once.warn(f"{name}: {rule}", "%s: %s (got %s). Such values are left out.", name, rule, got)


class Counter(Store):
    """Sums."""

    def __init__(self, metric: Metric, once: Once) -> None:
        super().__init__(metric, once)
        self.points: dict[Key, float] = {}
        self.lock = RLock()

    def _keep(self, number: float, key: Key) -> None:
        if number < 0:
            self._drop("a counter never falls", str(number))
        elif number == 0 and key in self.points:
            pass  # the usual case, worth no lock
        else:
            with self.lock:
                if key in self.points or len(self.points) < POINTS_LIMIT:
                    self.points[key] = self.points.get(key, 0) + number
                    return
            self._overflow(key)


class Gauge(Store):
    """Last values. One that is not finite withdraws the point."""

    def __init__(self, metric: Metric, once: Once, nonfinite: Counter) -> None:
        super().__init__(metric, once)
        self.points: dict[Key, float] = {}
        self._nonfinite = nonfinite if metric.short in catalog.SIGNALS else None

    def take(self, value: SupportsFloat, key: Key = ()) -> None:
        """Keep a value; written out, since most of a recording is gauges and a call is a third of one's cost."""
        try:
            number = float(value)
        except Exception as error:
            self._unreadable(error)
            return
        if not isfinite(number):
            self._lose(number, key)
        elif key in self.points or len(self.points) < POINTS_LIMIT:
            self.points[key] = number
        else:
            self._overflow(key)

    def _lose(self, number: float, key: Key) -> None:
        self.points.pop(key, None)
        if self._nonfinite is None:
            super()._lose(number, key)
        else:
            self._nonfinite.take(1, (("signal", self.metric.short),))


class Histogram(Store):
    """Values that wait until a reader collects, or until the queue is full."""

    def __init__(self, metric: Metric, once: Once, instrument: Callable[[Histogram], Any | None]) -> None:
        super().__init__(metric, once)
        self._instrument = instrument
        self._queue: deque[tuple[float, Key]] = deque()
        self._keys: set[Key] = set()

    def _keep(self, number: float, key: Key) -> None:
        if number < 0:
            self._drop("a value must be 0 or more", str(number))
            return
        if key not in self._keys:
            if len(self._keys) >= POINTS_LIMIT:
                self._overflow(key)
                return
            self._keys.add(key)
        self._queue.append((number, key))
        if len(self._queue) > QUEUE_LIMIT:
            self.drain(self._instrument(self), 1)  # one for one: no call takes long

    def drain(self, instrument: Any | None, limit: int = QUEUE_LIMIT) -> None:
        """Hand over the oldest values to the instrument; without one they are lost."""
        for _ in range(min(limit, len(self._queue))):  # what comes meanwhile waits: a fast loop would never let it end
            try:
                number, key = self._queue.popleft()
            except IndexError:  # empty
                return
            try:
                if instrument is not None:
                    instrument.record(number, dict(key))
            except Exception as error:
                self._drop("a value must be recorded", repr(error))
