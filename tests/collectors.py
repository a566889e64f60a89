"""Collectors that speak OTLP and keep what they get."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
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


class Collector:
    """An OTLP/HTTP collector that keeps what it gets, or answers with an error, or hangs."""

    def __init__(self, status: int = 200, hangs: bool = False) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.paths: list[str] = []
        self.released = Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.paths.append(self.path)
                collector.requests.append(ExportMetricsServiceRequest.FromString(body))
                if hangs:
                    collector.released.wait(30)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


class GrpcCollector(MetricsServiceServicer):
    """An OTLP/gRPC collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 the service's name
        """Take a request."""
        self.requests.append(request)
        return ExportMetricsServiceResponse()


@contextmanager
def grpc_collector() -> Iterator[tuple[str, GrpcCollector]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    collector = GrpcCollector()
    add_MetricsServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}", collector
    finally:
        server.stop(0).wait()
