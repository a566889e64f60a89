"""The ways out of metrics: provider, readers, exporters, shutdown. Spans and logs have theirs in modules of their own.

Every data point leaves with the run id as an attribute; it is put on here, so that recording costs
nothing for it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from .catalog import RUN_ID
from .closing import CLOSING_TIME_S, Closing, all_within
from .destinations import Console, Destination, Otlp, Scrape, StandardOtlp, destination
from .errors import EmitterError, missing_library
from .identity import cleaned
from .instruments import prepare
from .otlp import otlp_exporter
from .plain import AttributeValue, plain, utf8
from .repeats import Repeats, speakers
from .settings import Settings

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from .scrape import ScrapeReader

SCOPE = "megatron-watch"
"""Name of the meter."""

_log = logging.getLogger(__name__)


class Export(Closing):
    """Metrics of one run on their way out, made by `start`. A context manager that ends with a shutdown."""

    def __init__(
        self,
        *,
        run_id: str,
        provider: MeterProvider,
        readers: Sequence[MetricReader],
        exporters: Sequence[_Outgoing],
        scrapes: Sequence[ScrapeReader],
    ) -> None:
        self.run_id = run_id
        self.meter: Meter = provider.get_meter(SCOPE)
        self.addresses = tuple(scrape.address for scrape in scrapes)
        """Host and port of each scrape destination, as bound."""
        self._readers = readers
        self._exporters = exporters
        self._scrapes = scrapes
        prepare(self.meter)
        super().__init__()

    def flush(self, timeout_s: float = CLOSING_TIME_S) -> bool:
        """Push the present values; whether all arrived in time."""
        in_time = all_within(timeout_s, [reader.force_flush for reader in self._readers])
        return in_time and not any(exporter.failing for exporter in self._exporters)

    def await_scrape(self, timeout_s: float) -> None:
        """Wait until whoever scrapes has the present values; nobody is waited for who has not called lately."""
        deadline = time.monotonic() + timeout_s
        for reader in self._scrapes:
            reader.await_scrape(max(0.0, deadline - time.monotonic()))

    def _close(self, timeout_s: float) -> None:
        all_within(timeout_s, [reader.shutdown for reader in self._readers])


def start(
    run_id: str,
    to: str | Iterable[str] = ("scrape:9464",),
    *,
    resource: Mapping[str, AttributeValue] | None = None,
    rank: int | None = None,
    interval_s: float | None = None,
    strict: bool = True,
) -> Export:
    """Open the ways out of one run. Call it on the rank that exports.

    `to` names destinations: `scrape:PORT`, `scrape:HOST:PORT`, `otlp:URL`, `otlp` (as OTEL_EXPORTER_OTLP_* say),
    `console`; `resource` adds resource attributes; `rank` is this process's, else RANK or SLURM_PROCID of the
    environment; `interval_s` is the time between two pushes, else OTEL_METRIC_EXPORT_INTERVAL or the SDK's 60 s;
    not `strict` means that a way out that cannot be opened is a warning.

    Raises: ValueError if an argument cannot be; EmitterError if a way out cannot be opened.
    """
    run_id = cleaned(run_id)
    wanted = [destination(text) for text in ((to,) if isinstance(to, str) else to)]
    if not wanted:
        raise ValueError("emitter.start: metrics go somewhere (got no destination). Name one in `to`.")
    readers: list[MetricReader] = []
    exporters: list[_Outgoing] = []
    scrapes: list[ScrapeReader] = []
    try:
        for where in wanted:
            try:
                if isinstance(where, Scrape):
                    scrapes.append(_scrape_reader(where, run_id))
                    readers.append(scrapes[-1])
                else:
                    exporters.append(_Outgoing(_exporter(where), where, run_id))
            except EmitterError as error:
                if strict:
                    raise
                _log.warning("%s Training goes on without.", error)
        # Last: a reader collects from now on, and until there is a provider it would complain.
        readers += [PeriodicExportingMetricReader(exporter, interval_s and interval_s * 1000) for exporter in exporters]
        provider = MeterProvider(
            metric_readers=readers, resource=sdk_resource(run_id, rank, resource or {}), shutdown_on_exit=False
        )
    except BaseException:
        all_within(CLOSING_TIME_S, [reader.shutdown for reader in readers])
        raise
    export = Export(
        run_id=run_id,
        provider=provider,
        readers=readers,
        exporters=exporters,
        scrapes=scrapes,
    )
    for scrape in scrapes:
        scrape.serve()
    return export


def sdk_resource(run_id: str, rank: int | None, given: Mapping[str, AttributeValue]) -> Resource:
    """The resource of a process: what is given, over the environment, over the defaults."""
    mine = (os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0) if rank is None else rank
    defaults = {"service.name": Settings.service_name, "service.instance.id": f"{run_id}-rank{mine}"}
    environment = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
    made = Resource.create({**defaults, **environment, **given, RUN_ID: run_id})
    return Resource({utf8(name): _encodable(value) for name, value in made.attributes.items()}, made.schema_url)


def _encodable(value: Any) -> Any:
    """A resource attribute as every exporter takes it, at whatever length; a detector of the SDK may find several."""
    if isinstance(value, tuple):
        return tuple(map(_encodable, value))
    return utf8(value) if isinstance(value, str) else plain(value)


def _scrape_reader(where: Scrape, run_id: str) -> ScrapeReader:
    try:
        from .scrape import ScrapeReader
    except ImportError as error:
        raise missing_library(where, error) from error
    return ScrapeReader(where, partial(stamped, run_id=run_id, on_resource=True))


def _exporter(where: Otlp | StandardOtlp | Console) -> MetricExporter:
    if isinstance(where, Console):
        return ConsoleMetricExporter(sys.stdout)
    exporter: MetricExporter = otlp_exporter(where, "metrics")
    return exporter


def stamped(data: MetricsData, run_id: str, *, on_resource: bool) -> MetricsData:
    """The same data with the run id on every point, and on the resource only if wanted."""
    return replace(
        data,
        resource_metrics=[
            replace(
                of_resource,
                resource=of_resource.resource if on_resource else _without_run_id(of_resource.resource),
                scope_metrics=[
                    replace(of_scope, metrics=[_stamped_metric(metric, run_id) for metric in of_scope.metrics])
                    for of_scope in of_resource.scope_metrics
                ],
            )
            for of_resource in data.resource_metrics
        ],
    )


def _stamped_metric(metric: Metric, run_id: str) -> Metric:
    data: Any = metric.data  # one of four classes, each with data_points
    points = [replace(point, attributes={**(point.attributes or {}), RUN_ID: run_id}) for point in data.data_points]
    return replace(metric, data=replace(data, data_points=points))


def _without_run_id(resource: Resource) -> Resource:
    return Resource({key: value for key, value in resource.attributes.items() if key != RUN_ID}, resource.schema_url)


class _Outgoing(MetricExporter):
    """An exporter that stamps what it sends and does not repeat its complaints."""

    def __init__(self, exporter: MetricExporter, where: Destination, run_id: str) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._where = where
        self._run_id = run_id
        self._process = os.getpid()
        self._repeats = Repeats((__name__, *sorted(speakers(type(exporter)))))
        self.failing = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """Send the data. Never raises."""
        result = MetricExportResult.FAILURE
        # A forked data loader reports nothing in the run's name.
        if self._repeats.closed or os.getpid() != self._process:
            return result
        with self._repeats.sending(_log, self._where, "metrics"):
            # With the id on resource and points, a collector that copies resource attributes sends it twice.
            data = stamped(metrics_data, self._run_id, on_resource=isinstance(self._where, Console))
            result = self._exporter.export(data, timeout_millis=timeout_millis, **kwargs)
        self.failing = result is not MetricExportResult.SUCCESS
        if not self.failing:
            self._repeats.forget()
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """As the exporter does."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """As the exporter does."""
        self._repeats.close()
        self._exporter.shutdown(timeout_millis=timeout_millis)
