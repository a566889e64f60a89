"""One test export by each way out, and in one sentence what stopped it. The SDK is loaded when an export is tried."""

from __future__ import annotations

import io
import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from . import catalog, diagnosis
from .destinations import (
    GRPC_PORT,
    HTTP_PORT,
    LOOPBACK,
    Console,
    Otlp,
    Scrape,
    StandardOtlp,
    destination,
    otlp_protocol,
    told_without_secrets,
    without_secrets,
)
from .errors import EmitterError
from .identity import ResourceAttributes
from .instruments import record
from .plain import AttributeValue
from .ranks import Place
from .settings import Settings

ANSWER_S = 5.0
"""How long an answer is waited for; a collector that is well needs less than one second."""

SPAN = "megatron_watch.doctor"
"""Name of the span, and of the logger, of a test export."""

_NOT_OPENED = " Training goes on without."


@dataclass(frozen=True, kw_only=True)
class Way:
    """Where one signal goes by one destination, as it is in effect."""

    to: str
    """The destination, as `start` takes it."""
    signal: str
    protocol: str = ""
    endpoint: str = ""
    """A URL without secrets."""
    host: str = ""
    port: int = 0
    encrypted: bool = False


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Who makes a test export: a process of a run, with the resource that its training program would have."""

    run_id: str
    place: Place
    settings: Settings
    attributes: ResourceAttributes

    @property
    def everything(self) -> dict[str, AttributeValue]:
        """The attributes of spans and logs."""
        return {**self.attributes.stable, **self.attributes.volatile}


def ways(to: tuple[str, ...], settings: Settings, environ: Mapping[str, str]) -> list[Way]:
    """All ways out: each destination with each signal that is on and that it takes.

    Raises: ValueError if the environment asks for a protocol that is none.
    """
    found = []
    for text in to:
        where = destination(text)
        for signal in settings.signals:
            if isinstance(where, Scrape):
                if signal == "metrics":
                    url = f"http://{_reachable(where.host)}:{where.port}/metrics"
                    found.append(Way(to=text, signal=signal, protocol="http", endpoint=url))
            elif isinstance(where, Console):
                found.append(Way(to=text, signal=signal))
            else:
                found.append(_pushed(text, where, signal, environ))
    return found


def _pushed(text: str, where: Otlp | StandardOtlp, signal: str, environ: Mapping[str, str]) -> Way:
    if isinstance(where, Otlp):
        protocol, url = "grpc" if where.grpc else "http/protobuf", where.endpoint(signal)
    else:
        protocol, url = otlp_protocol(signal, environ), environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "")
        port, path = (GRPC_PORT, "") if protocol == "grpc" else (HTTP_PORT, f"/v1/{signal}")
        url = url or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://localhost:{port}").rstrip("/") + path
    parts = urlsplit(url if "//" in url else f"//{url}")
    encrypted = parts.scheme == "https"
    if protocol == "grpc" and parts.scheme != "https" and isinstance(where, StandardOtlp):
        names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE")
        said = next((environ[name] for name in names if name in environ), None)
        encrypted = parts.scheme != "http" if said is None else said.lower() != "true"
    usual = GRPC_PORT if protocol == "grpc" else 443 if encrypted else 80
    return Way(
        to=text,
        signal=signal,
        protocol=protocol,
        endpoint=without_secrets(url),
        host=parts.hostname or "",
        port=parts.port or usual,
        encrypted=encrypted,
    )


def attempt(way: Way, sender: Sender) -> str:
    """Export one value, span or record that way; what stopped it, or nothing if it arrived."""
    with heard() as messages:
        try:
            if isinstance(destination(way.to), Scrape):
                return _scrape(way, sender)
            return told_without_secrets(_push(way, sender, messages))
        except EmitterError as error:
            return told_without_secrets(str(error))
        except ImportError as error:
            return f"needs a library (got {error}). Install megatron-watch[otlp]."
        except Exception as error:  # of the exporter's; the doctor goes on to the next way
            return told_without_secrets(f"the exporter must start (got {error!r}). Check the OTEL_* variables.")


@contextmanager
def heard() -> Iterator[list[str]]:
    """Everything that is warned of meanwhile, which is nowhere else said.

    Not what threads warn of that were there before: those of an earlier way out, which has not come to its end.
    """
    messages: list[str] = []
    others = set(threading.enumerate()) - {threading.current_thread()}
    make, silence = logging.getLogRecordFactory(), logging.NullHandler()

    def hear(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        ours = record.name != SPAN and threading.current_thread() not in others
        if ours and (record.levelno or 0) >= logging.WARNING:
            messages.append(record.getMessage())
        return record

    # When a record is made, for the SDK's loggers let the same complaint of two exporters pass once only.
    logging.setLogRecordFactory(hear)
    logging.getLogger().addHandler(silence)
    try:
        yield messages
    finally:
        logging.setLogRecordFactory(make)
        logging.getLogger().removeHandler(silence)


def _scrape(way: Way, sender: Sender) -> str:
    from . import start

    with start(sender.run_id, [way.to], resource=sender.attributes.stable, rank=sender.place.rank) as export:
        record(export.meter, catalog.RUN_INFO, 1, {"attempt": "0"})
        host, port = export.addresses[0]
        url = f"http://{_reachable(host)}:{port}/metrics"
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(url, timeout=ANSWER_S) as answer:
                body = answer.read().decode()
        except OSError as error:
            return f"{url} must answer (got {error}). Does a firewall of this machine forbid it?"
        return "" if sender.run_id in body else f"{url} must show the test value (got another page). Take another port."


def _reachable(host: str) -> str:
    """Where a server that listens on this address can be called from its own machine."""
    if host in ("0.0.0.0", "::"):
        return LOOPBACK if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host else host


def _push(way: Way, sender: Sender, messages: list[str]) -> str:
    with redirect_stdout(io.StringIO()):
        way_out, send = _OPENED[way.signal](way.to, sender)
        arrived = False
        try:
            for message in messages:  # ways of spans and logs that cannot be opened are warnings
                if message.endswith(_NOT_OPENED):
                    return message.removesuffix(_NOT_OPENED)
            if obstacle := diagnosis.unreachable(way):
                return obstacle
            send()
            begin = time.monotonic()
            arrived = way_out.flush(ANSWER_S)
            in_time = time.monotonic() - begin < ANSWER_S
            said = tuple(messages)  # so far: what an exporter says of being closed is no reason
        finally:
            way_out.shutdown(ANSWER_S if arrived else 0.0)  # who has not answered is not waited for
    return "" if arrived else diagnosis.explained(way, said, in_time)


class _WayOut(Protocol):
    """What ways out of all signals have in common."""

    def flush(self, timeout_s: float) -> bool: ...

    def shutdown(self, timeout_s: float) -> None: ...


Opened = tuple[_WayOut, Callable[[], None]]
"""A way out, and what sends one thing by it."""


def _metrics(to: str, sender: Sender) -> Opened:
    from . import start

    export = start(sender.run_id, [to], resource=sender.attributes.stable, rank=sender.place.rank)
    return export, lambda: record(export.meter, catalog.RUN_INFO, 1, {"attempt": "0"})


def _traces(to: str, sender: Sender) -> Opened:
    from . import tracing

    always = replace(sender.settings, sampling_strategy="rank_aware", export_sample_rate=1.0)
    way_out = tracing.start(sender.run_id, [to], place=sender.place, settings=always, resource=sender.everything)
    return way_out, lambda: way_out.tracer.start_span(SPAN).end()


def _logs(to: str, sender: Sender) -> Opened:
    from . import log_bridge

    bridge = log_bridge.start(sender.run_id, [to], place=sender.place, resource=sender.everything)
    # Critical, so that it passes whatever level the root logger has.
    return bridge, lambda: logging.getLogger(SPAN).critical("A test export.")


_OPENED = {"metrics": _metrics, "traces": _traces, "logs": _logs}
