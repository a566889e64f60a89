"""The scrape endpoint: one HTTP server for one run."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.registry import Collector

from .destinations import Scrape
from .errors import EmitterError
from .forks import tell_in_child

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from prometheus_client import Metric

_log = logging.getLogger(__name__)

POLL_S = 0.05
"""How long a shutdown waits for the server to notice."""

SILENCE_S = 10.0
"""A connection on which nothing comes or goes for so long is closed."""

FORGOTTEN_S = 300.0
"""Who has not scraped for this long, Prometheus' own lookback, is not waited for."""


class ScrapeReader(PrometheusMetricReader):
    """Listens on a port of its own and, once served, answers with the stamped metrics.

    Raises: EmitterError if the port cannot be listened on.
    """

    def __init__(self, where: Scrape, stamp: Callable[[MetricsData], MetricsData]) -> None:
        super().__init__()
        REGISTRY.unregister(self._collector)  # the process's registry is not ours; old exporters know no other
        self._stamp = stamp
        registry = CollectorRegistry()
        registry.register(OneScrapeAtATime(self._collector))
        server = _IPv6Server if ":" in where.host else _Server
        try:
            self._server = make_server(where.host, where.port, make_wsgi_app(registry), server, _QuietHandler)
        except OSError as error:
            raise EmitterError(
                f"{where}: the port must be free to listen on (got {error}). Take another one."
            ) from error
        tell_in_child(self._server)
        host, port = self._server.server_address[:2]
        self.address = (str(host), int(port))
        self._thread = Thread(target=self._server.serve_forever, args=(POLL_S,), name="megatron-watch", daemon=True)

    def serve(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def await_scrape(self, timeout_s: float) -> bool:
        """Wait until somebody has fetched the present values, if anybody scrapes; whether it came to that."""
        return self._server.await_answer(timeout_s)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        if metrics_data is not None:
            super()._receive_metrics(self._stamp(metrics_data), timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Nothing to do: who scrapes gets the present values. A collection here would be served twice."""
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Close the port."""
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._answers = Condition()
        self._asked_at = self._answered_at = -math.inf  # when the last scrape came; the last that is answered
        super().__init__(*arguments)

    def after_fork(self) -> None:
        """Give the port back: a data loader that outlives the run would keep it."""
        self.socket.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; at the interpreter's end Python 3.12 starts none any more."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hung up or sent no HTTP is no news."""
        _log.debug("emitter: no answer to %s.", client_address, exc_info=True)

    def asked(self) -> float:
        """Note that a scrape has come; the time, for `answered`."""
        self._asked_at = time.monotonic()
        return self._asked_at

    def answered(self, asked_at: float) -> None:
        """Note that a scrape has been answered in full."""
        with self._answers:
            self._answered_at = max(self._answered_at, asked_at)
            self._answers.notify_all()

    def await_answer(self, timeout_s: float) -> bool:
        """Wait until a scrape has been answered that came from now on."""
        begin = time.monotonic()
        if self._asked_at < begin - FORGOTTEN_S:
            return False
        with self._answers:
            return self._answers.wait_for(lambda: self._answered_at >= begin, timeout_s)


class _IPv6Server(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    server: _Server
    timeout = SILENCE_S
    _asked_at: float | None = None

    def parse_request(self) -> bool:
        is_http = super().parse_request()
        if is_http and self.command == "GET" and self.path.partition("?")[0] in ("/metrics", "/"):  # no probe, no icon
            self._asked_at = self.server.asked()
        return is_http

    def handle(self) -> None:
        super().handle()
        if self._asked_at is not None:
            self.server.answered(self._asked_at)

    def log_message(self, format: str, *args: Any) -> None:
        """A scrape every few seconds is no news."""


class OneScrapeAtATime(Collector):
    """Two scrapes at once would mix their points: each series would appear twice."""

    def __init__(self, collector: Any) -> None:
        self._collector = collector
        self._lock = Lock()

    def collect(self) -> Iterable[Metric]:
        """Metrics of one collection."""
        with self._lock:
            return list(self._collector.collect())
