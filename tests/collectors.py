"""OTLP collectors that are well, sick, or not there: what a run may meet on the other side. All on loopback."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

FOREVER_S = 60.0
"""Longer than any export, and than any test, waits."""


@dataclass(kw_only=True)
class Received:
    """What a collector got, and where it is."""

    to: str
    """Its destination, as `start` takes it."""
    requests: list[ExportMetricsServiceRequest] = field(default_factory=list)
    status: int = 200
    """What it answers over HTTP."""
    paths: list[str] = field(default_factory=list)
    """Path of each request over HTTP."""

    def values(self, name: str) -> list[float]:
        """Values of a metric, one for each point of each request; of a histogram the counts."""
        return [
            point.count if metric.WhichOneof("data") == "histogram" else point.as_double
            for request in self.requests
            for of_resource in request.resource_metrics
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
            if metric.name == name
            for point in getattr(metric, metric.WhichOneof("data")).data_points
        ]


@contextmanager
def takes_everything(context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[tuple[str, bytes]]]]:
    """A server that says yes to every request; its port, and path and body of each."""
    requests: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[Any, Any]:
            connection, address = super().get_request()
            return (context.wrap_socket(connection, server_side=True) if context else connection), address

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Whoever hung up does not speak TLS, or does not trust us."""

    server = Server(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_port, requests
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def over_http(*, port: int = 0, status: int = 200, delay_s: float = 0.0) -> Iterator[Received]:
    """A collector that answers with that status, after that time."""
    released = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.paths.append(self.path)
            received.requests.append(ExportMetricsServiceRequest.FromString(body))
            released.wait(delay_s)
            self.send_response(received.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = _HttpServer(("127.0.0.1", port), Handler)
    received = Received(to=f"otlp:http://127.0.0.1:{server.server_port}", status=status)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield received
    finally:
        released.set()
        server.shutdown()
        server.server_close()


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hung up while we were slow is not waiting for an answer."""


@contextmanager
def over_grpc(*, port: int = 0, status: grpc.StatusCode | None = None, delay_s: float = 0.0) -> Iterator[Received]:
    """The same over gRPC; without a status it takes what it gets."""
    released = Event()

    class Service(MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the service's name
            received.requests.append(request)
            released.wait(delay_s)
            if status is not None:
                context.abort(status, "sick")
            return ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(4))
    add_MetricsServiceServicer_to_server(Service(), server)
    received = Received(to=f"otlp:grpc://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}")
    server.start()
    try:
        yield received
    finally:
        released.set()
        server.stop(0).wait()


@contextmanager
def refusing(scheme: str) -> Iterator[Received]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take it meanwhile
        yield Received(to=f"otlp:{scheme}://127.0.0.1:{bound.getsockname()[1]}")


@contextmanager
def swallowing(scheme: str) -> Iterator[Received]:
    """A host that does not even answer a connection, as behind a firewall: the queue of its port is full."""
    with ExitStack() as opened:
        listening = opened.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield Received(to=f"otlp:{scheme}://127.0.0.1:{listening.getsockname()[1]}")


@contextmanager
def nameless(scheme: str) -> Iterator[Received]:
    """A host whose name nobody knows."""
    yield Received(to=f"otlp:{scheme}://collector.invalid:4318")


Hazard = Callable[[], AbstractContextManager[Received]]


SICK: dict[str, Hazard] = {
    "http refusing": lambda: refusing("http"),
    "http swallowing": lambda: swallowing("http"),
    "http nameless": lambda: nameless("http"),
    "http 400": lambda: over_http(status=400),
    "http 500": lambda: over_http(status=500),
    "http 503": lambda: over_http(status=503),
    "http hanging": lambda: over_http(delay_s=FOREVER_S),
    "grpc refusing": lambda: refusing("grpc"),
    "grpc swallowing": lambda: swallowing("grpc"),
    "grpc nameless": lambda: nameless("grpc"),
    "grpc invalid": lambda: over_grpc(status=grpc.StatusCode.INVALID_ARGUMENT),
    "grpc internal": lambda: over_grpc(status=grpc.StatusCode.INTERNAL),
    "grpc unavailable": lambda: over_grpc(status=grpc.StatusCode.UNAVAILABLE),
    "grpc hanging": lambda: over_grpc(delay_s=FOREVER_S),
}
"""Collectors that take nothing, each in its way."""

REACHED: Sequence[str] = [name for name in SICK if not name.endswith(("refusing", "swallowing", "nameless"))]
"""Those that a request reaches all the same."""
