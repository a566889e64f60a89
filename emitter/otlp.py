"""The OTLP exporters: one for each signal and protocol, in packages that a training image may lack."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from .destinations import Otlp, StandardOtlp, otlp_protocol
from .errors import EmitterError, missing_library

_PACKAGES = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http",
}

_EXPORTERS = {
    "metrics": ("metric_exporter", "OTLPMetricExporter"),
    "traces": ("trace_exporter", "OTLPSpanExporter"),
    "logs": ("_log_exporter", "OTLPLogExporter"),
}


def otlp_exporter(where: Otlp | StandardOtlp, signal: str) -> Any:
    """The SDK's exporter of `metrics`, `traces` or `logs` for a destination.

    Raises: EmitterError if a library is missing or the exporter does not start.
    """
    module, name = _EXPORTERS[signal]
    try:
        if isinstance(where, StandardOtlp):
            package, given = _PACKAGES[otlp_protocol(signal, os.environ)], {}
        else:
            package = _PACKAGES["grpc" if where.grpc else "http/protobuf"]
            given = {"endpoint": where.endpoint(signal), **({"insecure": not where.encrypted} if where.grpc else {})}
        return getattr(import_module(f"{package}.{module}"), name)(**given)
    except ImportError as error:
        raise missing_library(where, error) from error
    except Exception as error:
        raise EmitterError(f"{where}: the exporter must start (got {error!r}). Check the OTEL_* variables.") from error
