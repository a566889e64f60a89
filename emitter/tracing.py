"""The ways out of spans: provider, processors, exporters, samplers; and spans as a metric.

Sampling is about what is exported: every span that is made is measured.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, Sampler, SamplingResult

from . import catalog, spans
from .closing import CLOSING_TIME_S, Closing, all_within
from .destinations import Console, Destination, Otlp, Scrape, StandardOtlp, destination
from .errors import EmitterError
from .export import SCOPE, sdk_resource
from .instruments import record
from .otlp import otlp_exporter
from .plain import AttributeValue
from .ranks import exports
from .repeats import Once, Repeats, speakers
from .sampling import RANK_AWARE, sampler_factory

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Tracer

    from .ranks import Place
    from .settings import Settings

_log = logging.getLogger(__name__)


class SpanDurations(SpanProcessor):
    """Measures every span that ends, as `catalog.SPAN_DURATION`; fits any tracer provider."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._once = Once(__name__)

    def on_end(self, span: ReadableSpan) -> None:
        """Observe how long the span took. Never raises."""
        try:
            if span.start_time is not None and span.end_time is not None:
                name, group = spans.measured_as(span.name)
                seconds = (span.end_time - span.start_time) / 1e9
                record(self._meter, catalog.SPAN_DURATION, seconds, {"span": name, "group": group})
        except Exception as error:
            self._once.warn("end", "emitter: a span cannot be measured (got %r). Training goes on.", error)


def sampler(place: Place, settings: Settings) -> Sampler | None:
    """The sampler that the settings name; None, where they name none, leaves it to OTEL_TRACES_SAMPLER.

    Raises: ValueError if nobody knows the name.
    """
    factory = sampler_factory(settings.sampling_strategy)
    if factory is not None:
        return factory(place, settings)
    if settings.sampling_strategy == RANK_AWARE:
        return ALWAYS_ON if exports(place, replace(settings, rank_strategy="sampled")) else ALWAYS_OFF
    return None


class _Measured(Sampler):
    """A sampler whose dropped spans are recorded all the same, for the metric, and not exported."""

    def __init__(self, of: Sampler) -> None:
        self._of = of

    def should_sample(self, *arguments: Any, **options: Any) -> SamplingResult:
        """As the sampler does, but never not at all."""
        result = self._of.should_sample(*arguments, **options)
        if result.decision is not Decision.DROP:
            return result
        return SamplingResult(Decision.RECORD_ONLY, result.attributes, result.trace_state)

    def get_description(self) -> str:
        """The sampler's."""
        return self._of.get_description()


class Tracing(Closing):
    """Spans of one run on their way out, made by `start`. A context manager that ends with a shutdown."""

    def __init__(self, provider: TracerProvider, processors: Sequence[_Batches]) -> None:
        self.tracer: Tracer = provider.get_tracer(SCOPE)
        self._processors = processors
        super().__init__()

    def flush(self, timeout_s: float = CLOSING_TIME_S) -> bool:
        """Push the spans that have ended; whether all arrived in time."""
        in_time = all_within(timeout_s, [processor.force_flush for processor in self._processors])
        return in_time and all(processor.exporter.arrived for processor in self._processors)

    def _close(self, timeout_s: float) -> None:
        all_within(timeout_s, [processor.shutdown for processor in self._processors])


def start(
    run_id: str,
    to: Iterable[str],
    *,
    place: Place,
    settings: Settings,
    resource: Mapping[str, AttributeValue] | None = None,
    meter: Meter | None = None,
) -> Tracing:
    """Open the ways out of one run's spans. Call it on the rank that exports, with the run id of `export.start`.

    `to` names destinations as there; a scraped one takes no spans. One that cannot be opened is a warning. With a
    `meter` every span is measured.

    Raises: ValueError if a destination or the sampling strategy cannot be.
    """
    wanted = [destination(text) for text in to]
    chosen = sampler(place, settings)
    provider = TracerProvider(chosen, sdk_resource(run_id, place.rank, resource or {}), shutdown_on_exit=False)
    if meter is not None:
        provider.sampler = _Measured(provider.sampler)  # in time: a tracer takes it over when it is made
        provider.add_span_processor(SpanDurations(meter))
    processors = []
    for where in wanted:
        if not isinstance(where, Scrape):
            try:
                processors.append(_Batches(_Outgoing(_exporter(where), where)))
            except EmitterError as error:
                _log.warning("%s Training goes on without.", error)
            else:
                provider.add_span_processor(processors[-1])
    return Tracing(provider, processors)


def _exporter(where: Otlp | StandardOtlp | Console) -> SpanExporter:
    if isinstance(where, Console):
        return ConsoleSpanExporter(out=sys.stdout)
    exporter: SpanExporter = otlp_exporter(where, "traces")
    return exporter


class _Outgoing(SpanExporter):
    """An exporter that does not repeat its complaints."""

    def __init__(self, exporter: SpanExporter, where: Destination) -> None:
        self._exporter = exporter
        self._where = where
        queue = speakers(_Batches) | {"opentelemetry.sdk._shared_internal"}
        self.repeats = Repeats(sorted(speakers(type(exporter)) | queue))
        self.arrived = True
        """Whether the last spans did; not while they are on their way."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans. Never raises."""
        result = SpanExportResult.FAILURE
        self.arrived = False
        with self.repeats.sending(_log, self._where, "spans"):
            result = self._exporter.export(spans)
        self.arrived = result is SpanExportResult.SUCCESS
        if self.arrived:
            self.repeats.forget()
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the exporter does."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self) -> None:
        """As the exporter does."""
        self.repeats.close()
        self._exporter.shutdown()


class _Batches(BatchSpanProcessor):
    """A bounded queue in front of an exporter, which says once that it is full."""

    def __init__(self, exporter: _Outgoing) -> None:
        super().__init__(exporter)
        self.exporter = exporter
        self._process = os.getpid()
        self._closed = False

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span."""
        if self._closed or os.getpid() != self._process:  # a forked data loader reports nothing in the run's name
            return
        with self.exporter.repeats.left_out():
            super().on_end(span)

    def force_flush(self, timeout_millis: float | None = None) -> bool:
        """Export what is queued."""
        return super().force_flush(None if timeout_millis is None else int(timeout_millis))

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Export what is queued and close; who calls looks after the time."""
        self._closed = True
        super().shutdown()  # type: ignore[no-untyped-call]  # the SDK's
