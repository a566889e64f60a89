"""Why telemetry does not arrive, in one sentence: who is at the other end, and what the exporter said."""

from __future__ import annotations

import os
import re
import socket
import ssl
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .trial import Way

KNOCK_S = 2.0
"""How long a connection is waited for."""

_HINTS = {
    "401": "Check OTEL_EXPORTER_OTLP_HEADERS.",
    "403": "Check OTEL_EXPORTER_OTLP_HEADERS.",
    "404": "Check the path, and that the collector takes this signal.",
    "UNAUTHENTICATED": "Check OTEL_EXPORTER_OTLP_HEADERS.",
    "PERMISSION_DENIED": "Check OTEL_EXPORTER_OTLP_HEADERS.",
    "UNIMPLEMENTED": "Does the collector take this signal?",
}
_ANSWERED = re.compile(
    r"(?:code: |Transient error )(?!StatusCode\.DEADLINE)(?:StatusCode\.)?(\w+(?: \w+)*?)(?:,|$| encountered)"
)
"""What exporters say of an answer that they do not like."""
_DISTRUST = re.compile(r"certificate verify failed: ([^(']+)")


def unreachable(way: Way) -> str:
    """Why no connection comes about; through a proxy nobody can say."""
    if not way.host or urllib.request.getproxies():
        return ""
    try:
        socket.create_connection((way.host, way.port), KNOCK_S).close()
    except socket.gaierror:
        return f"a host {way.host!r} must be known (got no address). Check the name, and this machine's DNS."
    except TimeoutError:
        return (
            f"{way.host}:{way.port} must take connections (got no answer in {KNOCK_S:g} s). "
            "Check the address, and firewalls in between."
        )
    except OSError as error:
        return (
            f"somebody must listen at {way.host}:{way.port} (got {error.strerror or error}). "
            "Start the collector there, or name another one."
        )
    return ""


def explained(way: Way, messages: Sequence[str], in_time: bool) -> str:
    """What an export failed of, from what the exporter said and from what is spoken at the other end."""
    if distrust := next(filter(None, map(_DISTRUST.search, messages)), None):
        return _distrusted(way, distrust[1].strip())
    if way.host and not urllib.request.getproxies():
        if way.encrypted:
            if obstacle := _no_tls(way):
                return obstacle
        elif (spoken := _spoken(way)) and spoken != way.protocol:
            if spoken == "TLS":
                do = "Write https, or grpcs"
            elif way.to == "otlp":
                do = f"Set OTEL_EXPORTER_OTLP_PROTOCOL={spoken}"
            else:
                do = f"Write otlp:{'grpc' if spoken == 'grpc' else 'http'}://{way.host}:{way.port}"
            return f"{way.host}:{way.port} must speak {way.protocol} (got {spoken}). {do}."
    if answered := next(filter(None, map(_ANSWERED.search, messages)), None):
        got = answered[1]
        return f"the collector must take {way.signal} (got {got}). {_HINTS.get(got, 'See what its own log says.')}"
    if not in_time:
        return f"{way.host}:{way.port} must answer in time (got nothing). Is the collector overloaded, or not one?"
    got = messages[-1][:300] if messages else "no reason"
    return f"the exporter must succeed (got {got}). Check the OTEL_* variables."


def _distrusted(way: Way, got: str) -> str:
    before = [name for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE") if os.environ.get(name)]
    unset = f"; unset {' and '.join(before)}, which may count before it" if before else ""
    return (
        f"the certificate of {way.host}:{way.port} must be trusted (got {got!r}). "
        f"Set OTEL_EXPORTER_OTLP_CERTIFICATE to a file with its authority's{unset}."
    )


def _no_tls(way: Way) -> str:
    """What stops a TLS handshake."""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{way.signal.upper()}_CERTIFICATE")
    try:
        context = ssl.create_default_context(cafile=own or os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE"))
        with socket.create_connection((way.host, way.port), KNOCK_S) as connection:
            context.wrap_socket(connection, server_hostname=way.host).close()
    except ssl.SSLCertVerificationError as error:
        return _distrusted(way, error.verify_message)
    except OSError as error:
        got = getattr(error, "reason", None) or error.strerror or error
        return f"{way.host}:{way.port} must speak TLS (got {got}). Write http, or grpc, if it does not."
    return ""


def _spoken(way: Way) -> str:
    """The protocol that is spoken at the other end, from its answer to a plain HTTP request; empty if not known."""
    try:
        with socket.create_connection((way.host, way.port), KNOCK_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: doctor\r\nConnection: close\r\n\r\n")
            answer = connection.recv(16)
    except OSError:
        return ""
    if answer.startswith(b"HTTP/1"):
        return "http/protobuf"
    if answer[3:4] == b"\x04":  # a SETTINGS frame, with which HTTP/2 begins
        return "grpc"
    return "TLS" if answer.startswith(b"\x15\x03") else ""  # an alert: it has not understood the request
