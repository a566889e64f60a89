"""Values as every exporter can encode them: what comes from outside may be anything. Standard library only."""

from __future__ import annotations

import traceback
from contextlib import suppress
from numbers import Integral

AttributeValue = str | bool | int | float

TEXT_LIMIT = 256
"""Characters of an attribute's value that are kept."""

WHOLE_BITS = 63
"""Bits of the largest whole number, without its sign, that OTLP carries."""


def utf8(text: str) -> str:
    """The text with a ? for what UTF-8 lacks, such as a strange byte in a file name or a variable."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def plain(value: object) -> AttributeValue:
    """A value as an attribute: a short text, a switch or a number; what is none of these is read as one, or told."""
    if isinstance(value, str):
        return utf8(value[:TEXT_LIMIT])
    if isinstance(value, bool | float):
        return value
    with suppress(Exception):
        if isinstance(value, Integral) and int(value).bit_length() <= WHOLE_BITS:
            return int(value)
        return float(value)  # type: ignore[arg-type]  # whether it can is what is tried
    with suppress(Exception):
        return utf8(str(value)[:TEXT_LIMIT])
    return type(value).__name__


def exception_texts(error: BaseException) -> dict[str, str]:
    """Message and stack trace of an exception, by OpenTelemetry's names, at whatever length."""
    told = {"exception.message": str(error), "exception.stacktrace": "".join(traceback.format_exception(error))}
    return {name: utf8(text) for name, text in told.items()}
