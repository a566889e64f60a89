"""Where telemetry goes: `scrape:PORT`, `scrape:HOST:PORT`, `otlp`, `otlp:URL` or `console`. Standard library only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit, urlunsplit

LOOPBACK = "127.0.0.1"
METRICS_PATH = "/v1/metrics"
GRPC_PORT = 4317
HTTP_PORT = 4318
LAST_PORT = 65_535
PROTOCOLS = ("grpc", "http/protobuf")

_HIDING = re.compile(r"[^\s('\"]*(?:@|\?[^\s)])[^\s)]*")
"""What may be a URL with secrets in a message: a word with an @, or with a question mark that does not end it."""

FORMS = ("scrape:PORT", "scrape:HOST:PORT", "otlp", "otlp:URL", "console")


@dataclass(frozen=True, kw_only=True)
class Scrape:
    """A port that a Prometheus scrapes; 0 is any free one."""

    host: str = LOOPBACK
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"scrape:{host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Otlp:
    """A collector that takes OTLP: protobuf over HTTP for http and https, gRPC for grpc and grpcs.

    Raises: ValueError if the URL is none of these.
    """

    url: str

    def __post_init__(self) -> None:
        parts = _split(self.url)
        if parts is None or parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
            raise ValueError(
                "emitter: otlp takes a URL with http, https, grpc or grpcs "
                f"(got {without_secrets(self.url)!r}). Write otlp:http://HOST:4318 or otlp:grpc://HOST:{GRPC_PORT}."
            )
        if self.grpc and parts.path not in ("", "/"):
            raise ValueError(f"emitter: a gRPC URL has no path (got {parts.path!r}). Leave it out.")

    @property
    def grpc(self) -> bool:
        """Whether the collector is spoken to by gRPC."""
        return self.url.startswith("grpc")

    @property
    def encrypted(self) -> bool:
        """Whether the connection is."""
        return self.url.startswith(("https:", "grpcs:"))

    def endpoint(self, signal: str) -> str:
        """What the exporter of `metrics`, `traces` or `logs` is given: a URL with a path for HTTP, a host for gRPC."""
        parts = urlsplit(self.url)
        if self.grpc:
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            return f"{'https' if self.encrypted else 'http'}://{host}:{parts.port or GRPC_PORT}"
        if parts.path in ("", "/"):
            return urlunsplit(parts._replace(path=f"/v1/{signal}"))
        if parts.path.endswith(METRICS_PATH):  # written for metrics; another path is the user's
            return urlunsplit(parts._replace(path=parts.path.removesuffix(METRICS_PATH) + f"/v1/{signal}"))
        return self.url

    def __str__(self) -> str:
        return f"otlp:{without_secrets(self.url)}"


@dataclass(frozen=True, kw_only=True)
class StandardOtlp:
    """The collector that the standard variables OTEL_EXPORTER_OTLP_* name; the SDK reads all of them itself."""

    def __str__(self) -> str:
        return "otlp"


def otlp_protocol(signal: str, environ: Mapping[str, str]) -> str:
    """Protocol that the environment asks for `metrics`, `traces` or `logs`.

    gRPC unless said otherwise, as Megatron-LM's exporter does; an endpoint with the port of HTTP says otherwise.

    Raises: ValueError if it is none that we speak.
    """
    for name in (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := environ.get(name, "").strip():
            if value not in PROTOCOLS:
                raise ValueError(f"{name}: must be {' or '.join(PROTOCOLS)} (got {value!r}). Use one of them.")
            return value
    common = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    parts = _split(environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or common)
    return "http/protobuf" if parts is not None and parts.port == HTTP_PORT else "grpc"


@dataclass(frozen=True, kw_only=True)
class Console:
    """Standard output."""

    def __str__(self) -> str:
        return "console"


Destination = Scrape | Otlp | StandardOtlp | Console


def destination(text: str, forms: tuple[str, ...] = FORMS) -> Destination:
    """Read a destination as a user writes it; `forms` are those that an error offers.

    Raises: ValueError if it is no destination.
    """
    kind, _, rest = text.partition(":")
    if text == "console":
        return Console()
    if text == "otlp":
        return StandardOtlp()
    if kind == "otlp" and rest:
        return Otlp(url=rest)
    if kind == "scrape" and rest:
        return _scrape(text, rest)
    near = difflib.get_close_matches(kind, [form.partition(":")[0] for form in forms], 1)
    hint = f" Did you mean {near[0]!r}?" if near and near[0] != kind else ""
    raise ValueError(
        f"emitter: a destination is {', '.join(forms[:-1])} or {forms[-1]} (got {without_secrets(text)!r}).{hint}"
    )


def _scrape(text: str, rest: str) -> Scrape:
    parts = _split(f"//{LOOPBACK}:{rest}" if rest.isdecimal() else f"//{rest}")
    if parts is None or not parts.hostname or parts.port is None or parts.path:
        raise ValueError(f"emitter: scrape takes PORT or HOST:PORT, the port 0 to 65535 (got {text!r}).")
    return Scrape(host=parts.hostname, port=parts.port)


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # out of range is found only here
    except ValueError:
        return None
    return parts


def without_secrets(url: str) -> str:
    """The URL without what may be a password or a token."""
    head, at, tail = url.rpartition("@")
    scheme, separator, _ = head.rpartition("//")
    return ((scheme + separator if at else "") + tail).partition("?")[0]


def told_without_secrets(message: str) -> str:
    """A message without what the URLs in it may hide."""
    return _HIDING.sub(lambda found: without_secrets(found[0]), message)
