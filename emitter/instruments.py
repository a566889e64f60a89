"""Instruments of the catalog, and the two functions that record into them.

A recording is a plain store: the last value of a gauge and the sum of a counter go into a dictionary,
the values of a histogram into a queue. Observable instruments read them when a reader collects. That
keeps the OpenTelemetry SDK, some microseconds an instrument, out of the training loop, and lets a gauge
withdraw its point, which a synchronous one cannot.

Needs the OpenTelemetry API only, and does nothing where even that is missing.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat
from weakref import WeakKeyDictionary, ref

from . import catalog
from .catalog import Kind, Metric
from .forks import tell_in_child
from .plain import AttributeValue, plain
from .repeats import Once
from .stores import Counter, Gauge, Histogram, Key, Store

try:
    from opentelemetry import metrics as _otel
except ImportError:
    _otel = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

_no_op_class: type = type(None) if _otel is None else _otel.NoOpMeter


class _Edge:
    """What a meter's instruments own: the way from the stores to the SDK.

    The recorder refers to it weakly: an instrument may refer to its meter, and a meter that its own
    recorder kept alive would never leave the cache.
    """

    def __init__(self) -> None:
        self.histograms: dict[Histogram, Any] = {}
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

    def callback(self, store: Counter | Gauge) -> Callable[[CallbackOptions], list[Observation]]:
        """Observes the points of a store, having filled the histograms, which are collected after all callbacks."""

        def observe(_options: CallbackOptions) -> list[Observation]:
            self.call_hooks()
            self.drain()
            return [_otel.Observation(number, dict(key)) for key, number in store.points.copy().items()]

        return observe


_Take = Callable[[SupportsFloat], None]


def _finder(edge: _Edge) -> Callable[[Histogram], Any | None]:
    """Finds the instrument of a histogram for as long as the edge lives; it does not keep it alive."""
    weak = ref(edge)

    def find(store: Histogram) -> Any | None:
        there = weak()
        return None if there is None else there.histograms.get(store)

    return find


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
        self._stores: dict[str, Store] = {}
        edge = _Edge()
        self._edge = ref(edge)
        self._nonfinite = Counter(catalog.NONFINITE, self._once)
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
            if isinstance(store, Counter):
                store.lock = RLock()
        edge = self._edge()
        if edge is not None:
            edge.histograms.clear()

    def add_hook(self, hook: Callable[[], object]) -> None:
        """Call it before each collection, for as long as the meter's instruments live."""
        edge = self._edge()
        if edge is not None:
            edge.hooks.append(hook)

    def store(self, meter: Meter, metric: Metric) -> Store:
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

    def _new_store(self, meter: Meter, metric: Metric) -> Store:
        edge = self._edge() or _Edge()
        store: Store
        if metric.kind is Kind.HISTOGRAM:
            store = Histogram(metric, self._once, _finder(edge))
        elif metric.kind is Kind.COUNTER:
            store = Counter(metric, self._once)
        else:
            store = Gauge(metric, self._once, self._nonfinite)
        self._create(meter, store, edge)
        self._stores[metric.name] = store
        return store

    def _create(self, meter: Meter, store: Store, edge: _Edge) -> None:
        metric = store.metric
        declared = {"unit": metric.otel_unit, "description": metric.meaning}
        try:
            if isinstance(store, Histogram):
                edge.histograms[store] = meter.create_histogram(
                    metric.name, explicit_bucket_boundaries_advisory=metric.bounds, **declared
                )
            elif isinstance(store, Counter):
                meter.create_observable_counter(metric.name, [edge.callback(store)], **declared)
            elif isinstance(store, Gauge):
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
    key: Key = () if not attributes else _checked(metric, attributes)
    if meter is None or value is None or meter.__class__ is _no_op_class or _otel is None:
        return
    try:
        recorder = _recorders.get(meter) or _recorder(meter)
        recorder.store(meter, metric).take(value, key)
    except Exception as error:
        _once.warn(f"record {metric}", "emitter.record: cannot record %s (got %r). Training goes on.", metric, error)


def _checked(metric: Metric, attributes: Mapping[str, AttributeValue]) -> Key:
    for name in attributes:
        if name not in metric.attributes:
            declared = ", ".join(metric.attributes) or "none"
            near = difflib.get_close_matches(name, metric.attributes, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"emitter.record: {metric.name!r} has the attributes: {declared} (got {name!r}).{hint}")
    return tuple(sorted((name, plain(value)) for name, value in attributes.items()))
