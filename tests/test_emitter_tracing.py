"""The ways out of spans: real receivers, the metric of durations, sampling, and a collector that harms nobody."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from emitter import catalog, sampling, spans, tracing
from emitter.ranks import Place, exports
from emitter.sampling import register_sampling_strategy
from emitter.settings import Settings
from emitter.spans import managed_span
from emitter.tracing import SpanDurations, Tracing, sampler

ROOT = Path(__file__).resolve().parent.parent
QUEUE, BATCH = 2048, 512  # OpenTelemetry's defaults
PATIENCE_S = 4.0  # of a busy machine; who waits for a collector that hangs waits 10 s at least
PLACE = Place()
SETTINGS = Settings()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine reaches the SDK, and every group is off afterwards."""
    for name in os.environ:
        if name.startswith(("OTEL_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)
    yield
    spans.disable()


class Collector:
    """An OTLP/HTTP collector that keeps what it gets, and hangs if told to."""

    def __init__(self, hangs: bool = False) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200
        released = self._released = Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                if hangs:
                    released.wait(30)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._server.server_close()


class GrpcCollector(TraceServiceServicer):
    """An OTLP/gRPC collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the service's name
        """Take a request."""
        self.requests.append(request)
        return ExportTraceServiceResponse()


@contextmanager
def grpc_collector() -> Iterator[tuple[str, GrpcCollector]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    collector = GrpcCollector()
    add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", collector
    finally:
        server.stop(0).wait()


@contextmanager
def on(*to: str, place: Place = PLACE, settings: Settings = SETTINGS, **options: Any) -> Iterator[Tracing]:
    """Tracing of a run with every group on."""
    with tracing.start("run-7", to, place=place, settings=settings, **options) as way_out:
        spans.enable(spans.resolve("all"), way_out.tracer)
        yield way_out


def names(requests: list[ExportTraceServiceRequest]) -> list[str]:
    return [
        span.name
        for request in requests
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def checkpoint() -> None:
    with managed_span("checkpoint", "megatron.checkpoint.save", **{"megatron.iteration": 7}):
        pass


class Measured:
    """A meter that is read here, and the durations in it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.meter = self._provider.get_meter("test")

    def points(self) -> dict[tuple[str, str], Any]:
        """Data points by name and group of the span."""
        data = self._reader.get_metrics_data()
        return {
            (point.attributes["span"], point.attributes["group"]): point
            for of_resource in (data.resource_metrics if data else ())
            for metric in of_resource.scope_metrics[0].metrics
            if metric.name == catalog.SPAN_DURATION.name
            for point in metric.data.data_points
        }


def check_otlp(requests: list[ExportTraceServiceRequest]) -> None:
    (of_resource,) = requests[0].resource_spans
    resource = {attribute.key: attribute.value.string_value for attribute in of_resource.resource.attributes}
    assert resource["nemo.run.id"] == "run-7"
    assert resource["service.instance.id"] == "run-7-rank3"
    assert resource["service.name"] == "megatron-lm"
    assert resource["team"] == "x"
    (span,) = of_resource.scope_spans[0].spans
    assert span.name == "megatron.checkpoint.save"
    assert [(item.key, item.value.int_value) for item in span.attributes] == [("megatron.iteration", 7)]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("standard", [False, True], ids=["by URL", "by OTEL variables"])
def test_otlp(protocol: str, standard: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over HTTP and gRPC spans arrive under the name they were given, with the run id on their resource."""
    with Collector() as collector, grpc_collector() as (address, grpc_service):
        url = collector.url if protocol == "http" else f"grpc://{address}"
        if standard:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url.replace("grpc:", "http:"))
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf" if protocol == "http" else "grpc")
        to = "otlp" if standard else f"otlp:{url}"
        with on(to, place=Place(rank=3, world_size=4), resource={"team": "x"}) as way_out:
            checkpoint()
            assert way_out.flush()
        check_otlp(collector.requests if protocol == "http" else grpc_service.requests)


@pytest.mark.parametrize(
    ("path", "sent_to"),
    [
        ("", "/v1/traces"),
        ("/opentelemetry/v1/metrics?a=b", "/opentelemetry/v1/traces?a=b"),
        ("/v1/traces", "/v1/traces"),
        ("/mine", "/mine"),
    ],
)
def test_paths(path: str, sent_to: str) -> None:
    """A URL for metrics leads spans to the path of traces beside it; any other path is the user's."""
    with Collector() as collector:
        with on(f"otlp:{collector.url}{path}"):
            checkpoint()
        assert collector.paths == [sent_to]


def test_console_and_scrape(capsys: pytest.CaptureFixture[str]) -> None:
    """The console shows the span with its run; a destination that is scraped takes none, and opens nothing."""
    with on("console", "scrape:0") as way_out:
        checkpoint()
        assert way_out.flush()
    span = json.loads(capsys.readouterr().out)
    assert span["name"] == "megatron.checkpoint.save"
    assert span["resource"]["attributes"]["nemo.run.id"] == "run-7"


def test_a_way_out_that_cannot_be_opened_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A protocol that nobody speaks is one line that says so; the other destination works."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier pigeon")
    with Collector() as collector:
        with on("otlp", f"otlp:{collector.url}"):
            checkpoint()
        assert names(collector.requests) == ["megatron.checkpoint.save"]
    (record,) = caplog.records
    assert "carrier pigeon" in record.getMessage()


def test_a_wrong_destination_is_refused() -> None:
    """A destination that nobody understands is an error before anything is opened."""
    with pytest.raises(ValueError, match=r"a destination is .* \(got 'scrap'\)"):
        tracing.start("run-7", ["scrap"], place=PLACE, settings=SETTINGS)


def test_durations() -> None:
    """Each span that ends is one observation, in seconds, under its documented name and group, over any provider."""
    measured = Measured()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SpanDurations(measured.meter))
    tracer = provider.get_tracer("theirs")
    spans.enable(frozenset({"step"}), tracer)
    tracer.start_span("megatron.checkpoint.save", start_time=10**18).end(10**18 + 40 * 10**9)
    tracer.start_span("megatron.save_checkpoint", start_time=10**18).end(10**18 + 2 * 10**9)
    tracer.start_span("GET /", start_time=10**18).end(10**18 + 10**9)
    with managed_span("step", "mine"):
        pass
    points = measured.points()
    assert {key: point.count for key, point in points.items()} == {
        ("megatron.save_checkpoint", "checkpoint"): 2,
        ("other", "other"): 1,
        ("mine", "step"): 1,
    }
    assert points["megatron.save_checkpoint", "checkpoint"].sum == 42
    assert tuple(points["other", "other"].explicit_bounds) == catalog.DURATION_BOUNDS_S


def test_the_number_of_series_is_bounded() -> None:
    """A thousand names cost no more series than the custom names that are allowed and one."""
    measured = Measured()
    with on(meter=measured.meter):
        for number in range(1000):
            with managed_span("step", f"step {number}"):
                pass
    assert len(measured.points()) == spans.CUSTOM_LIMIT + 1
    assert measured.points()["other", "other"].count == 1000 - spans.CUSTOM_LIMIT


@pytest.mark.parametrize("span", [None, object()])
def test_what_cannot_be_measured_is_one_warning(span: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A span that is none harms nobody."""
    durations = SpanDurations(Measured().meter)
    for _ in range(3):
        durations.on_end(span)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_rank_aware_keeps_all_spans_of_a_rank_or_none(rate: float) -> None:
    """Ranks whose spans leave are those that the rank strategy `sampled` chooses; every rank measures all."""
    settings = Settings(sampling_strategy="rank_aware", export_sample_rate=rate)
    kept = set()
    with Collector() as collector:
        for rank in range(16):
            place = Place(rank=rank, world_size=16)
            measured = Measured()
            with on(f"otlp:{collector.url}", place=place, settings=settings, meter=measured.meter):
                with managed_span("job", "outer"):
                    checkpoint()
                checkpoint()
            assert sum(point.count for point in measured.points().values()) == 3
            if collector.requests:
                assert len(names(collector.requests)) == 3
                kept.add(rank)
                collector.requests.clear()
    sampled = Settings(rank_strategy="sampled", export_sample_rate=rate)
    assert kept == {rank for rank in range(16) if exports(Place(rank=rank, world_size=16), sampled)}
    assert len(kept) == 16 * rate


def test_the_sdk_samples_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_TRACES_SAMPLER decides about export, while every span is measured."""
    assert sampler(PLACE, SETTINGS) is None
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    measured = Measured()
    with Collector() as collector:
        with on(f"otlp:{collector.url}", meter=measured.meter):
            checkpoint()
        assert collector.requests == []
    assert measured.points()["megatron.save_checkpoint", "checkpoint"].count == 1


def test_a_sampling_strategy_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registered factory is asked with place and settings; its name is taken from then on."""
    monkeypatch.setattr(sampling, "_factories", {})
    asked: list[tuple[Place, Settings]] = []
    register_sampling_strategy("mine", lambda *given: asked.append(given) or ALWAYS_OFF)  # type: ignore[func-returns-value]
    settings = Settings(sampling_strategy="mine")
    with Collector() as collector:
        with on(f"otlp:{collector.url}", settings=settings):
            checkpoint()
        assert collector.requests == []
    assert asked == [(PLACE, settings)]
    for name in ("mine", "rank_aware", "", " "):
        with pytest.raises(ValueError, match="must be new and not empty"):
            register_sampling_strategy(name, lambda *_: ALWAYS_OFF)


def test_an_unknown_sampling_strategy_is_refused() -> None:
    """The error lists what exists and what comes near."""
    with pytest.raises(ValueError, match=r"one of rank_aware \(got 'rankaware'\)\. Did you mean 'rank_aware'\?$"):
        tracing.start("run-7", [], place=PLACE, settings=Settings(sampling_strategy="rankaware"))


def refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def alive() -> int:
    """Spans in memory."""
    gc.collect()  # a connection's error holds its batch in a cycle
    return sum(isinstance(item, ReadableSpan) for item in gc.get_objects())


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_refusing_collector_is_reported_once(
    scheme: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that is not there costs a handful of lines, bounded memory, and a shutdown in time."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    before = alive()
    with on(f"otlp:{scheme}://127.0.0.1:{refused_port()}") as way_out:
        for _ in range(6000):
            checkpoint()
        assert alive() - before <= QUEUE + 2 * BATCH  # one on its way, and one that has just failed
        assert not way_out.flush(0.2)
        begun = time.monotonic()
        way_out.shutdown(1.0)
        assert time.monotonic() - begun < PATIENCE_S
        checkpoint()
    said = [str(record.msg) for record in caplog.records]
    assert len(set(said)) == len(said) <= 5, said


def test_a_hanging_collector_holds_up_nobody(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a collector hangs, spans stay quick, a full queue is said once, and a shutdown keeps its time."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    with Collector(hangs=True) as collector, on(f"otlp:{collector.url}") as way_out:
        checkpoint()
        deadline = time.monotonic() + 30
        while not collector.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert collector.requests
        monkeypatch.setattr(time, "time", count(step=30).__next__)  # newer SDKs keep still for 20 s, and no longer
        slowest = 0.0
        for _ in range(5000):
            begun = time.monotonic()
            checkpoint()
            slowest = max(slowest, time.monotonic() - begun)
        monkeypatch.undo()
        assert slowest < PATIENCE_S
        begun = time.monotonic()
        way_out.shutdown(0.5)
        assert time.monotonic() - begun < PATIENCE_S
    messages = [record.getMessage() for record in caplog.records]
    assert sum("full" in message for message in messages) == 1
    assert len(messages) <= 3, messages


def test_a_failing_collector_is_news_again_after_it_worked(caplog: pytest.LogCaptureFixture) -> None:
    """Two outages are two reports; a flush tells whether the spans arrived."""
    reports = []
    with Collector() as collector, on(f"otlp:{collector.url}") as way_out:
        for collector.status in (400, 400, 200, 400, 400, 200):
            checkpoint()
            assert way_out.flush() is (collector.status == 200)
            reports.append(sum(" 400" in record.getMessage() for record in caplog.records))
    assert reports[0] > 0
    assert reports[1] == reports[2] == reports[0]
    assert reports[3] == reports[4] == reports[5] == 2 * reports[0]


SCRIPT = """
import os, sys, warnings
from emitter import spans, tracing
from emitter.ranks import Place
from emitter.settings import Settings
way_out = tracing.start("run-7", [sys.argv[1]], place=Place(), settings=Settings())
spans.enable(spans.resolve("all"), way_out.tracer)
"""


def script(code: str, to: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT + code, to],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_last_spans_leave_at_interpreter_exit() -> None:
    """A script that forgets the shutdown still exports its last spans, and ends in bounded time."""
    with Collector() as collector:
        done = script("with spans.managed_span('job', 'last'): pass", f"otlp:{collector.url}")
        assert (done.returncode, done.stderr) == (0, "")
        assert names(collector.requests) == ["last"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_exports_nothing() -> None:
    """A data loader that was forked off reports no span in the run's name, even when it leaves as usual."""
    with Collector() as collector:
        done = script(
            "warnings.simplefilter('ignore')\n"
            "child = os.fork()\n"
            "with spans.managed_span('job', 'of the child' if child == 0 else 'of the parent'): pass\n"
            "way_out.flush()\n"
            "if child: os.waitpid(child, 0)\n",
            f"otlp:{collector.url}",
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert names(collector.requests) == ["of the parent"]


def test_a_disabled_sdk_is_silent() -> None:
    """OTEL_SDK_DISABLED turns everything off without an error."""
    done = script("with spans.managed_span('job', 'x'): pass", "console", OTEL_SDK_DISABLED="true")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
