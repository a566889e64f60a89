"""Instruments of the catalog, and the two functions that record into them.

A recording is a plain store: the last value of a gauge and the sum of a counter go into a dictionary,
the values of a histogram into a queue. Observable instruments read them when a reader collects. That
keeps the OpenTelemetry SDK, some microseconds an instrument, out of the training loop, and lets a gauge
withdraw its point, which a synchronous one cannot.

Needs the OpenTelemetry API only, and does nothing where even that is missing.
"""

from __future__ import annotations

import difflib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat
from weakref import WeakKeyDictionary, ref

from . import catalog
from .catalog import Kind, Metric
from .forks import tell_in_child
from .plain import AttributeValue as AttributeValue
from .plain import plain
from .repeats import Once

try:
    from opentelemetry import metrics as _otel
except ImportError:
    _otel = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_Key = tuple[tuple[str, AttributeValue], ...]
"""Attributes of a point, sorted by name."""

QUEUE_LIMIT = 10_000
"""Histogram values that wait for a collection: a megabyte at most, and half a day of one value every 5 s."""

POINTS_LIMIT = 2_000
"""Points of one metric, as many as the SDK's specification allows: what makes more is no label."""

_log = logging.getLogger(__name__)
_no_op_class: type = type(None) if _otel is None else _otel.NoOpMeter


class _Store:
    """Values of one metric, as the training loop left them."""

    def __init__(self, metric: Metric, once: Once) -> None:
        self.metric = metric
        self._once = once

    def take(self, value: SupportsFloat, key: _Key = ()) -> None:
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

    def _keep(self, number: float, key: _Key) -> None:
        raise NotImplementedError

    def _overflow(self, key: _Key) -> None:
        """Leave a value out that would make a point too many."""
        self._drop(f"a metric has {POINTS_LIMIT} points at most", str(dict(key)))

    def _lose(self, number: float, key: _Key) -> None:
        """Deal with a NaN or Inf, which OpenTelemetry does not carry."""
        self._drop("a value must be finite", str(number))

    def _unreadable(self, error: Exception) -> None:
        """Deal with a value whose float() failed: a tensor's may raise anything."""
        self._drop("a value must be a number", repr(error))

    def _drop(self, rule: str, got: str) -> None:
        name = self.metric.name
        self._once.warn(f"{name}: {rule}", "%s: %s (got %s). Such values are left out.", name, rule, got)


class _Counter(_Store):
    """Sums."""

    def __init__(self, metric: Metric, once: Once) -> None:
        super().__init__(metric, once)
        self.points: dict[_Key, float] = {}
        self.lock = RLock()

    def _keep(self, number: float, key: _Key) -> None:
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


class _Gauge(_Store):
    """Last values. One that is not finite withdraws the point."""

    def __init__(self, metric: Metric, once: Once, nonfinite: _Counter) -> None:
        super().__init__(metric, once)
        self.points: dict[_Key, float] = {}
        self._nonfinite = nonfinite if metric.short in catalog.SIGNALS else None

    def take(self, value: SupportsFloat, key: _Key = ()) -> None:
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

    def _lose(self, number: float, key: _Key) -> None:
        self.points.pop(key, None)
        if self._nonfinite is None:
            super()._lose(number, key)
        else:
            self._nonfinite.take(1, (("signal", self.metric.short),))


class _Histogram(_Store):
    """Values that wait until a reader collects, or until the queue is full."""

    def __init__(self, metric: Metric, once: Once, edge: _Edge) -> None:
        super().__init__(metric, once)
        self._edge = ref(edge)
        self._queue: deque[tuple[float, _Key]] = deque()
        self._keys: set[_Key] = set()

    def _keep(self, number: float, key: _Key) -> None:
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
            edge = self._edge()
            self.drain(edge.histograms.get(self) if edge else None, 1)  # one for one: no call takes long

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


class _Edge:
    """What a meter's instruments own: the way from the stores to the SDK.

    The recorder refers to it weakly: an instrument may refer to its meter, and a meter that its own
    recorder kept alive would never leave the cache.
    """

    def __init__(self) -> None:
        self.histograms: dict[_Histogram, Any] = {}
        self.hooks: list[Callable[[], object]] = []

    def drain(self) -> None:
        for store, instrument in self.histograms.copy().items():
            store.drain(instrument)

    def call_hooks(self) -> None:
        for hook in self.hooks:
            try:
                hook()
            except Exception as error:
                _once.warn(f"hook {hook!r}", "emitter: a hook before a collection failed (got %r).", error)

    def callback(self, store: _Counter | _Gauge) -> Callable[[CallbackOptions], list[Observation]]:
        """Observes the points of a store, having filled the histograms, which are collected after all callbacks."""

        def observe(_options: CallbackOptions) -> list[Observation]:
            self.call_hooks()
            self.drain()
            return [_otel.Observation(number, dict(key)) for key, number in store.points.copy().items()]

        return observe


_Take = Callable[[SupportsFloat], None]


class _Core(NamedTuple):
    """How each parameter of record_training_metrics is kept."""

    step_duration_ms: _Take
    loss: _Take
    throughput_tflops: _Take
    grad_norm: _Take
    skipped_iters: _Take
    learning_rate: _Take
    tokens_per_sec: _Take
    memory_allocated_gb: _Take


class _Recorder:
    """The stores of one meter; it never refers to the meter, under which it is cached weakly."""

    def __init__(self, meter: Meter) -> None:
        self._once = Once(__name__)
        self._lock = RLock()
        tell_in_child(self)
        self._stores: dict[str, _Store] = {}
        edge = _Edge()
        self._edge = ref(edge)
        self._nonfinite = _Counter(catalog.NONFINITE, self._once)
        self._stores[catalog.NONFINITE.name] = self._nonfinite
        self._create(meter, self._nonfinite, edge)
        for signal in catalog.SIGNALS:
            self._nonfinite.take(0, (("signal", signal),))
        self.core = _Core(*(self.store(meter, metric).take for metric in catalog.CORE))
        self.store(meter, catalog.SKIPPED_ITERS).take(0)

    def after_fork(self) -> None:
        """Let go of locks whose holder stayed in the parent, and of the SDK, whose locks may be held too."""
        self._lock = RLock()
        for store in self._stores.values():
            if isinstance(store, _Counter):
                store.lock = RLock()
        edge = self._edge()
        if edge is not None:
            edge.histograms.clear()

    def add_hook(self, hook: Callable[[], object]) -> None:
        """Call it before each collection, for as long as the meter's instruments live."""
        edge = self._edge()
        if edge is not None:
            edge.hooks.append(hook)

    def store(self, meter: Meter, metric: Metric) -> _Store:
        """The store of a metric; creates the instrument at first sight.

        Raises: ValueError if another entry of this name is of another kind.
        """
        store = self._stores.get(metric.name)
        if store is None:
            with self._lock:
                store = self._stores.get(metric.name) or self._new_store(meter, metric)
        kind = store.metric.kind
        if kind is not metric.kind:
            raise ValueError(
                f"a name has one kind, here {kind.value} (got {metric.kind.value}). Rename one of the two."
            )
        return store

    def _new_store(self, meter: Meter, metric: Metric) -> _Store:
        edge = self._edge() or _Edge()
        store: _Store
        if metric.kind is Kind.HISTOGRAM:
            store = _Histogram(metric, self._once, edge)
        elif metric.kind is Kind.COUNTER:
            store = _Counter(metric, self._once)
        else:
            store = _Gauge(metric, self._once, self._nonfinite)
        self._create(meter, store, edge)
        self._stores[metric.name] = store
        return store

    def _create(self, meter: Meter, store: _Store, edge: _Edge) -> None:
        metric = store.metric
        declared = {"unit": metric.otel_unit, "description": metric.meaning}
        try:
            if isinstance(store, _Histogram):
                edge.histograms[store] = meter.create_histogram(
                    metric.name, explicit_bucket_boundaries_advisory=metric.bounds, **declared
                )
            elif isinstance(store, _Counter):
                meter.create_observable_counter(metric.name, [edge.callback(store)], **declared)
            elif isinstance(store, _Gauge):
                meter.create_observable_gauge(metric.name, [edge.callback(store)], **declared)
        except Exception as error:
            self._once.warn(
                "create", "%s: the instrument cannot be created (got %r). Not exported.", metric.name, error
            )


_recorders: WeakKeyDictionary[Meter, _Recorder] = WeakKeyDictionary()
_lock = RLock()
_once = Once(__name__)


def is_off(meter: Meter | None) -> bool:
    """Whether recording into the meter does nothing: whoever has to compute values need not."""
    return meter is None or meter.__class__ is _no_op_class or _otel is None


def prepare(meter: Meter) -> None:
    """Create a meter's instruments before its first recording, so that its counters show 0 from then on."""
    if not is_off(meter):
        _recorder(meter)


def before_collection(meter: Meter, hook: Callable[[], object]) -> None:
    """Call a hook whenever a reader collects from the meter, so that it records what is under way.

    Once or more often a collection, in the reader's thread; it may record but create no instrument.
    """
    if not is_off(meter):
        _recorder(meter).add_hook(hook)


def _recorder(meter: Meter) -> _Recorder:
    with _lock:
        recorder = _recorders.get(meter)
        if recorder is None:
            recorder = _recorders[meter] = _Recorder(meter)
        return recorder


def record_training_metrics(
    meter: Meter | None,
    step_duration_ms: SupportsFloat | None = None,
    loss: SupportsFloat | None = None,
    throughput_tflops: SupportsFloat | None = None,
    grad_norm: SupportsFloat | None = None,
    skipped_iters: SupportsFloat | None = None,
    learning_rate: SupportsFloat | None = None,
    tokens_per_sec: SupportsFloat | None = None,
    memory_allocated_gb: SupportsFloat | None = None,
) -> None:
    """Record the metrics of a log interval; a drop-in for Megatron-LM's function of this name.

    None is left out: a gauge keeps its last value. Never raises; each kind of failure is logged once.
    """
    if meter is None or meter.__class__ is _no_op_class or _otel is None:
        return
    try:
        core = (_recorders.get(meter) or _recorder(meter)).core
        if step_duration_ms is not None:
            core.step_duration_ms(step_duration_ms)
        if loss is not None:
            core.loss(loss)
        if throughput_tflops is not None:
            core.throughput_tflops(throughput_tflops)
        if grad_norm is not None:
            core.grad_norm(grad_norm)
        if skipped_iters is not None:
            core.skipped_iters(skipped_iters)
        if learning_rate is not None:
            core.learning_rate(learning_rate)
        if tokens_per_sec is not None:
            core.tokens_per_sec(tokens_per_sec)
        if memory_allocated_gb is not None:
            core.memory_allocated_gb(memory_allocated_gb)
    except Exception as error:
        _once.warn("training", "emitter.record_training_metrics: cannot record (got %r). Training goes on.", error)


def record(
    meter: Meter | None,
    metric: Metric,
    value: SupportsFloat | None,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> None:
    """Record one value of a catalog entry: set a gauge, add to a counter, observe with a histogram.

    None is left out. Each kind of failure is logged once.

    Raises: ValueError if the entry does not declare one of the attributes; nothing else, ever.
    """
    key: _Key = () if not attributes else _checked(metric, attributes)
    if meter is None or value is None or meter.__class__ is _no_op_class or _otel is None:
        return
    try:
        recorder = _recorders.get(meter) or _recorder(meter)
        recorder.store(meter, metric).take(value, key)
    except Exception as error:
        _once.warn(f"record {metric}", "emitter.record: cannot record %s (got %r). Training goes on.", metric, error)


def _checked(metric: Metric, attributes: Mapping[str, AttributeValue]) -> _Key:
    for name in attributes:
        if name not in metric.attributes:
            declared = ", ".join(metric.attributes) or "none"
            near = difflib.get_close_matches(name, metric.attributes, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"emitter.record: {metric.name!r} has the attributes: {declared} (got {name!r}).{hint}")
    return tuple(sorted((name, plain(value)) for name, value in attributes.items()))
