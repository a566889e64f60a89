"""Every way out, on a real receiver: each entry of the catalog under the name that the queries search for."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from conftest import SUITES, tool
from live import Asked, scrape
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

from dashboards.scope import spellings
from emitter import catalog, record, start
from emitter.catalog import Kind, Metric
from emitter.export import Export
from provisioning.stack.prometheus import Prometheus, free_port

pytestmark = pytest.mark.live

ODD = 'a "b"\n\\n {c="d"}, é|.*'
"""Value of every attribute: what an exposition format would have to quote."""

OURS = '__name__=~"megatron.+"'
"""What a run records; the scraping server adds `up` and `scrape_…` of its own."""

FORMATS = {
    "text": {"scrape_protocols": ["PrometheusText0.0.4"]},
    "openmetrics": {"scrape_protocols": ["OpenMetricsText1.0.0"]},
    "default": {},
}
"""Runs that the newest Prometheus scrapes, and how it asks."""

Labels = frozenset[tuple[str, str]]
Sample = tuple[str, Labels]


def with_suffixes(metric: Metric, part: str) -> str:
    """Underscores, the unit and `_total` appended: vmagent's Prometheus naming."""
    return [name for name in spellings(metric, part) if "." not in name][-1]


def with_few_suffixes(metric: Metric, part: str) -> str:
    """The same, but for shares, to which OpenTelemetry's Prometheus exporter appends nothing."""
    return spellings(metric, part)[0] if metric.otel_unit == "1" else with_suffixes(metric, part)


def with_dots(metric: Metric, part: str) -> str:
    """The name as it is declared: vmagent's own naming."""
    return next(name for name in spellings(metric, part) if "." in name)


def record_everything(export: Export) -> None:
    """One value of every entry of the catalog, its place in it, so that none can be taken for another."""
    for place, metric in enumerate(catalog.METRICS, 1):
        record(export.meter, metric, place, dict.fromkeys(metric.attributes, ODD))


def expected(spell: Callable[[Metric, str], str]) -> dict[Sample, float]:
    """What a receiver shows of that, under the names that a pipeline makes; of buckets the last."""
    found: dict[Sample, float] = {
        (spell(catalog.NONFINITE, ""), frozenset({("signal", signal)})): 0 for signal in catalog.SIGNALS
    }
    for place, metric in enumerate(catalog.METRICS, 1):
        labels = frozenset(dict.fromkeys(metric.attributes, ODD).items())
        if metric.kind is Kind.HISTOGRAM:
            found[spell(metric, "bucket"), labels | {("le", "+Inf")}] = 1
            found[spell(metric, "count"), labels] = 1
            found[spell(metric, "sum"), labels] = place
        else:
            found[spell(metric, ""), labels] = place
    return found


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """Where a run arrived, how it is asked for, and the names that it has there."""

    server: str
    matcher: str
    spell: Callable[[Metric, str], str]


WAYS = {
    "text": Arrived(server="new", matcher='nemo_run_id="text"', spell=with_few_suffixes),
    "openmetrics": Arrived(server="new", matcher='nemo_run_id="openmetrics"', spell=with_few_suffixes),
    "default": Arrived(server="new", matcher='nemo_run_id="default"', spell=with_few_suffixes),
    "oldest server": Arrived(server="old", matcher='nemo_run_id="old"', spell=with_few_suffixes),
    "otlp/http": Arrived(server="new", matcher='nemo_run_id="http"', spell=with_suffixes),
    "otlp/http, dotted": Arrived(server="new", matcher='"nemo.run.id"="http-dotted"', spell=with_dots),
    "otlp/grpc": Arrived(server="new", matcher='nemo_run_id="grpc"', spell=with_suffixes),
    "otlp/grpc, dotted": Arrived(server="new", matcher='"nemo.run.id"="grpc-dotted"', spell=with_dots),
    # One run by three ways at once.
    "several: scraped": Arrived(server="new", matcher='job="several",nemo_run_id="several"', spell=with_few_suffixes),
    "several: otlp/http": Arrived(server="new", matcher='job!="several",nemo_run_id="several"', spell=with_suffixes),
    "several: otlp/grpc": Arrived(server="new", matcher='"nemo.run.id"="several"', spell=with_dots),
}


class Relay(MetricsServiceServicer):
    """An OTLP/gRPC collector that hands on what it gets to one that takes HTTP alone."""

    def __init__(self, url: str) -> None:
        self._url = url

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the service's name
        """Take a request."""
        body, kind = request.SerializeToString(), {"Content-Type": "application/x-protobuf"}
        with urllib.request.urlopen(urllib.request.Request(self._url, body, kind), timeout=10):
            return ExportMetricsServiceResponse()


@contextmanager
def relay(url: str) -> Iterator[str]:
    """A relay to that URL; yields its destination."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_MetricsServiceServicer_to_server(Relay(url), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"otlp:grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def vmagent(binary: Path, prometheus: str, kept: Path, *flags: str) -> Iterator[str]:
    """An agent that takes OTLP and writes to a Prometheus; yields the URL that takes metrics."""
    port = free_port()
    command = [str(binary), f"-httpListenAddr=127.0.0.1:{port}", f"-remoteWrite.url={prometheus}/api/v1/write"]
    command += [f"-remoteWrite.tmpDataPath={kept}", "-remoteWrite.flushInterval=500ms", *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/opentelemetry/v1/metrics"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Asked]]:
    """Every run on its way to the oldest and the newest Prometheus."""
    new, old, agent = (
        tool("prometheus", SUITES["prometheus3"]),
        tool("prometheus", SUITES["prometheus2"]),
        tool("vmagent", "sid"),
    )
    folder = tmp_path_factory.mktemp("agents")
    with ExitStack() as running:

        def run(name: str, *to: str) -> str:
            export = running.enter_context(start(name, to, interval_s=1))
            record_everything(export)
            return ":".join(map(str, export.addresses[0])) if export.addresses else ""

        with_agents = ["--web.enable-remote-write-receiver"]
        scraped = [{**scrape({"": run(name, "scrape:0")}, job=name), **how} for name, how in FORMATS.items()]
        several = free_port()
        scraped.append(scrape({"": f"127.0.0.1:{several}"}, job="several"))
        newest = running.enter_context(Prometheus(new, flags=with_agents, config={"scrape_configs": scraped}))
        oldest = running.enter_context(Prometheus(old, targets=[run("old", "scrape:0")]))
        naming = "-opentelemetry.usePrometheusNaming"
        plain = running.enter_context(vmagent(agent, newest.url, folder / "plain"))
        named = running.enter_context(vmagent(agent, newest.url, folder / "named", naming))
        grpc_plain, grpc_named = (running.enter_context(relay(url)) for url in (plain, named))
        run("http", f"otlp:{named}")
        run("http-dotted", f"otlp:{plain}")
        run("grpc", grpc_named)
        run("grpc-dotted", grpc_plain)
        run("several", f"scrape:{several}", f"otlp:{named}", grpc_plain)
        asked = {"new": Asked(newest.url), "old": Asked(oldest.url)}
        for way in WAYS.values():
            asked[way.server].until(lambda way=way: asked[way.server].query(f"{{{OURS},{way.matcher}}}"))
        yield asked


def shown(asked: Asked, matcher: str) -> dict[Sample, float]:
    """Names, attributes and values of a run's series, of buckets the last."""
    declared = {name for metric in catalog.METRICS for name in metric.attributes}
    found: dict[Sample, float] = {}
    for series in asked.query(f"{{{OURS},{matcher}}}"):
        labels = series["metric"]
        if labels.get("le", "+Inf") == "+Inf":
            attributes = frozenset((key, value) for key, value in labels.items() if key in {*declared, "le"})
            assert (labels["__name__"], attributes) not in found, "a series came twice"
            found[labels["__name__"], attributes] = float(series["value"][1])
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_entry_of_the_catalog_arrives_under_its_name(way: Arrived, servers: Mapping[str, Asked]) -> None:
    """Whatever the way, each entry is there with its attributes and its value, under one of its spellings, once."""
    asked, wanted = servers[way.server], expected(way.spell)
    with suppress(AssertionError):  # the first scrape may have come in the middle of the recording
        asked.until(lambda: shown(asked, way.matcher) == wanted, seconds=5)
    assert shown(asked, way.matcher) == wanted


@pytest.mark.parametrize(("server", "without"), [("new", 'nemo_run_id="","nemo.run.id"=""'), ("old", 'nemo_run_id=""')])
def test_every_series_names_the_run(server: str, without: str, servers: Mapping[str, Asked]) -> None:
    """Nothing comes out of a run that a filter by run would miss, target_info included."""
    assert servers[server].query(f'{{__name__=~".+",__name__!~"up|scrape_.+",{without}}}') == []
    assert servers[server].query('target_info{nemo_run_id!=""}')


@pytest.mark.parametrize(
    ("job", "server", "family"),
    [
        ("text", "new", "megatron_training_skipped_iters_total"),
        ("openmetrics", "new", "megatron_training_skipped_iters"),
        ("default", "new", "megatron_training_skipped_iters"),
        ("training", "old", "megatron_training_skipped_iters"),
    ],
)
def test_the_scrapes_were_in_the_formats_that_are_meant(
    job: str, server: str, family: str, servers: Mapping[str, Asked]
) -> None:
    """The text format calls a counter's family by its sample, OpenMetrics without `_total`: both were really served."""
    query = urllib.parse.urlencode({"match_target": f'{{job="{job}"}}'})
    with urllib.request.urlopen(f"{servers[server].url}/api/v1/targets/metadata?{query}", timeout=10) as answer:
        families = {entry["metric"]: entry for entry in json.load(answer)["data"]}
    assert families[family]["type"] == "counter"
    assert families[family]["help"] == catalog.SKIPPED_ITERS.meaning
