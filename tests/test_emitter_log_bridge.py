"""The bridge of Python's logging: real receivers, what is bridged and what is not, and that it harms nobody."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)

from emitter import log_bridge, managed_span, set_up
from emitter.log_bridge import LogBridge
from emitter.ranks import Place

ROOT = Path(__file__).resolve().parent.parent
QUEUE = 2048  # OpenTelemetry's default
PLACE = Place()

program = logging.getLogger("program")


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No setting of the machine reaches the SDK, the root logger passes INFO, and is as it was afterwards."""
    for name in os.environ:
        if name.startswith(("OTEL_", "MEGATRON_OTEL_", "NEMO_LENS_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)
    caplog.set_level(logging.INFO)
    handlers = list(logging.getLogger().handlers)
    yield
    assert logging.getLogger().handlers == handlers


class Collector:
    """What an OTLP collector got, and where it is."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.requests: list[ExportLogsServiceRequest] = []
        self.paths: list[str] = []
        self.status = 200

    @property
    def records(self) -> list[Any]:
        """The log records of all requests."""
        return [
            record
            for request in self.requests
            for of_resource in request.resource_logs
            for of_scope in of_resource.scope_logs
            for record in of_scope.log_records
        ]

    @property
    def texts(self) -> list[str]:
        """Their bodies."""
        return [record.body.string_value for record in self.records]


@contextmanager
def over_http(hangs: bool = False) -> Iterator[Collector]:
    """A collector over HTTP, which hangs if told to."""
    released = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            if self.path == "/v1/logs":
                collector.requests.append(ExportLogsServiceRequest.FromString(body))
            if hangs:
                released.wait(30)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"otlp:http://127.0.0.1:{server.server_port}")
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield collector
    finally:
        released.set()
        server.shutdown()
        server.server_close()


@contextmanager
def over_grpc() -> Iterator[Collector]:
    """A collector over gRPC."""

    class Service(LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the service's name
            collector.requests.append(request)
            return ExportLogsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_LogsServiceServicer_to_server(Service(), server)
    collector = Collector(f"otlp:grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


def bridge(*to: str) -> LogBridge:
    return log_bridge.start("run-7", to, place=PLACE)


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a record or a resource."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value") for each in of.attributes}


@pytest.mark.parametrize("collector_over", [over_http, over_grpc])
def test_a_record_arrives(collector_over: Callable[[], AbstractContextManager[Collector]]) -> None:
    """With text, severity, time, where it is from, its extras and whose run it is; over each protocol."""
    with collector_over() as collector, bridge(collector.to, "scrape:0"):
        before = time.time_ns()
        program.warning("rank %d is slow", 3, extra={"node": "n17", "factor": 2.5})
    (record,) = collector.records
    assert record.body.string_value == "rank 3 is slow"
    assert (record.severity_text, record.severity_number) == ("WARN", 13)
    assert abs(record.time_unix_nano - before) < 10e9
    found = attributes(record)
    assert (found["node"], found["factor"]) == ("n17", 2.5)
    assert found["code.function.name"] == "test_a_record_arrives"
    (of_resource,) = collector.requests[0].resource_logs
    assert of_resource.scope_logs[0].scope.name == "program"
    assert attributes(of_resource.resource)["service.instance.id"] == "run-7-rank0"
    assert attributes(of_resource.resource)["nemo.run.id"] == "run-7"


def test_an_exception_arrives_with_its_trace() -> None:
    """Type, message and stack, as attributes."""
    with over_http() as collector, bridge(collector.to):
        try:
            raise ArithmeticError("loss is gone")
        except ArithmeticError:
            program.exception("step failed")
    found = attributes(collector.records[0])
    assert (found["exception.type"], found["exception.message"]) == ("ArithmeticError", "loss is gone")
    assert "test_an_exception_arrives" in found["exception.stacktrace"]


def test_the_root_logger_decides_what_goes_out() -> None:
    """Its level and those of the loggers below it count; the bridge has none of its own."""
    with over_http() as collector, bridge(collector.to):
        program.debug("too fine")
        program.info("fine")
        logging.getLogger("program.part").critical("coarse")
    assert collector.texts == ["fine", "coarse"]


def test_who_speaks_of_exports_is_not_exported() -> None:
    """Else a failing export would make the records of the next one."""
    with over_http() as collector, bridge(collector.to):
        for name in ("emitter.export", "opentelemetry.sdk", "urllib3.connectionpool", "requests", "grpc._channel"):
            logging.getLogger(name).error("an export failed")
        logging.getLogger("grpcio").error("another's")
    assert collector.texts == ["another's"]


def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """MEGATRON_OTEL_LOGS_ENABLED, over the same destinations, with the trace that a record belongs to."""
    with over_http() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.to.removeprefix("otlp:"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        monkeypatch.setenv("MEGATRON_OTEL_METRICS_ENABLED", "0")
        monkeypatch.setenv("MEGATRON_OTEL_LOGS_ENABLED", "1")
        with set_up(run_id="run-7", to=["otlp"]), managed_span("job", "megatron.pretrain") as span:
            program.info("inside")
            assert span is not None
            trace = span.get_span_context().trace_id
    (record,) = [record for record in collector.records if record.body.string_value == "inside"]
    assert int.from_bytes(record.trace_id, "big") == trace
    assert "/v1/logs" in collector.paths


def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's log goes anywhere without being asked for."""
    monkeypatch.setenv("MEGATRON_OTEL_TRACES_ENABLED", "0")
    handlers = list(logging.getLogger().handlers)
    with set_up(run_id="run-7", to=["scrape:0"]):
        assert logging.getLogger().handlers == handlers


class Hostile:
    """Something that cannot be written down."""

    def __str__(self) -> str:
        raise RuntimeError("CUDA error")


def test_no_record_takes_another_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be encoded is left out; the records before and after it arrive, and nothing is raised."""
    with over_http() as collector, bridge(collector.to):
        program.info("before")
        program.info({"loss": object()})
        mine = logging.getLogger().handlers[-1]  # alone: pytest's raises, or keeps what cannot be sent to its report
        info = {"name": "program", "levelno": logging.INFO, "levelname": "INFO"}
        file_name = {"msg": "bytes of a file name: \udcff", "name_of_file": "\udcff"}
        mine.handle(logging.makeLogRecord({**info, **file_name}))
        program.info("extras", extra={"tensor": object(), "large": 2**64, "list": [1, "a"], "nothing": None})
        error = OSError("\udcff")
        mine.handle(logging.makeLogRecord({**info, "msg": "failed", "exc_info": (OSError, error, None)}))
        for wrong in ({"msg": "wrong %d", "args": ("number",)}, {"msg": Hostile()}):
            mine.handle(logging.makeLogRecord({**info, **wrong}))
        program.info("after")
    texts = collector.texts
    assert (texts[0], texts[-1]) == ("before", "after")
    assert texts[2:4] == ["bytes of a file name: ?", "extras"]
    assert not {"tensor", "large", "list", "nothing", "name_of_file"} & attributes(collector.records[3]).keys()
    told = attributes(collector.records[4])
    assert (told["exception.type"], told["exception.message"]) == ("OSError", "?")
    assert told["exception.stacktrace"] == "OSError: ?\n"
    assert len(texts) == 6
    said = [record.message for record in caplog.records if record.name == "emitter.log_bridge"]
    assert len(said) == 1  # both that cannot be read are of one kind
    assert said[0].startswith("emitter: a log record cannot be exported (got TypeError(")


def test_a_collector_that_hangs_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Records are queued, the queue is bounded, no more than a line says that it is full, and the end is in time."""
    caplog.set_level(logging.WARNING)
    program.setLevel(logging.INFO)
    try:
        with over_http(hangs=True) as collector:
            way_out = bridge(collector.to)
            program.info("first")
            begin = time.monotonic()
            while not collector.requests:
                assert time.monotonic() - begin < 30
                time.sleep(0.01)
            begin = time.monotonic()
            for number in range(QUEUE + 200):
                program.info("record %d", number)
            assert time.monotonic() - begin < 5
            begin = time.monotonic()
            way_out.shutdown(0.5)
            assert time.monotonic() - begin < 5
            program.info("after the end")
    finally:
        program.setLevel(logging.NOTSET)
    assert sum("ueue full" in record.message for record in caplog.records) <= 1  # some SDKs say nothing


def test_a_collector_that_refuses_is_one_complaint(caplog: pytest.LogCaptureFixture) -> None:
    """However often it fails."""
    with over_http() as collector:
        collector.status = 400
        with bridge(collector.to) as way_out:
            for number in range(5):
                program.info("record %d", number)
                assert not way_out.flush()
            collector.status = 200
            program.info("well again")
            assert way_out.flush()
    assert sum("code: 400" in record.message for record in caplog.records) == 1
    assert len(collector.requests) == 6


def test_a_way_out_that_cannot_be_opened_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training goes on."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "soon")
    with bridge("otlp:grpc://127.0.0.1:1"):
        program.info("into the void")
    (warning,) = [record.message for record in caplog.records if record.name == "emitter.log_bridge"]
    assert warning.startswith("otlp:grpc://127.0.0.1:1: the exporter must start")


PROGRAM = """
import logging, os, sys
from emitter import set_up
{before}
telemetry = set_up(run_id="run-7", to=sys.argv[1])
{after}
"""


def run(*to: str, before: str = "", after: str) -> subprocess.CompletedProcess[str]:
    """A program with the bridge, after its end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MEGATRON_"))}
    environ |= {"MEGATRON_OTEL_LOGS_ENABLED": "1", "MEGATRON_OTEL_TRACES_ENABLED": "0"}
    environ |= {"MEGATRON_OTEL_METRICS_ENABLED": "0"}
    code = PROGRAM.format(before=before, after=after)
    command = [sys.executable, "-W", "error", "-c", code, *to]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True)


def test_warnings_are_seen_without_any_configuration() -> None:
    """A program that configured no logging sees its warnings on standard error, bridge or not."""
    done = run("console", after="logging.warning('mind the gap'); logging.info('a detail')")
    assert done.stderr == "mind the gap\n"
    assert json.loads(done.stdout)["body"] == "mind the gap"


def test_the_programs_own_handlers_stay_as_they_are() -> None:
    """What the program prints, it prints once, and in its own form."""
    before = "logging.basicConfig(level='INFO', format='%(levelname)s|%(message)s')"
    with over_http() as collector:
        done = run(collector.to, before=before, after="logging.getLogger('a').info('one')")
    assert done.stderr == "INFO|one\n"
    assert collector.texts == ["one"]


def test_a_forked_child_sends_nothing() -> None:
    """A data loader's records are its own."""
    after = (
        "child = os.fork()\n"
        "if child == 0: logging.warning('from the child'); sys.exit(0)\n"
        "os.waitpid(child, 0); logging.warning('from the run')"
    )
    with over_http() as collector:
        done = run(collector.to, after=after)
    assert collector.texts == ["from the run"]
    assert done.stderr == "from the child\nfrom the run\n"


def test_a_forked_child_does_nothing_for_it() -> None:
    """A data loader's record is not even read: what reads it may be locked, by a thread that is not in the child."""
    after = (
        "class Loud:\n"
        "    def __str__(self): print(os.getpid() == run, file=sys.stderr, flush=True); return 'told'\n"
        "run = os.getpid(); logging.getLogger().setLevel(logging.INFO); child = os.fork()\n"
        "if child == 0: logging.info(Loud()); sys.exit(0)\n"
        "os.waitpid(child, 0); logging.info(Loud())"
    )
    with over_http() as collector:
        done = run(collector.to, after=after)
    assert (collector.texts, done.stderr) == (["told"], "True\n")
