"""The bridge of Python's logging: what the root logger passes goes out as OpenTelemetry logs, with the trace id."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from opentelemetry.sdk import _logs
from opentelemetry.sdk._logs import export as _logs_export

from .closing import CLOSING_TIME_S, Closing, all_within
from .destinations import Console, Destination, Otlp, Scrape, StandardOtlp, destination
from .errors import EmitterError
from .export import sdk_resource
from .otlp import otlp_exporter
from .plain import WHOLE_BITS, AttributeValue, exception_texts, utf8
from .repeats import Once, Repeats, speakers

if TYPE_CHECKING:
    from .ranks import Place

NOT_BRIDGED = (__name__.partition(".")[0], "opentelemetry", "urllib3", "requests", "grpc")
"""Loggers, with all below them, that speak when an export fails: their records would make the next one."""

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None)))
_QUEUES = ("opentelemetry.attributes", "opentelemetry.sdk._shared_internal", "opentelemetry.sdk._logs._internal.export")

_log = logging.getLogger(__name__)


class LogBridge(Closing):
    """Log records of one run on their way out, made by `start`. A context manager that ends with a shutdown."""

    def __init__(self, provider: _logs.LoggerProvider, outgoing: Sequence[_Outgoing]) -> None:
        self._outgoing = outgoing
        self._processors = [_logs_export.BatchLogRecordProcessor(cast(Any, exporter)) for exporter in outgoing]
        for processor in self._processors:
            provider.add_log_record_processor(processor)
        self._handler = _Handler(provider)
        logging.getLogger().addHandler(self._handler)
        super().__init__()

    def flush(self, timeout_s: float = CLOSING_TIME_S) -> bool:
        """Push the records that are waiting; whether all arrived in time."""
        in_time = all_within(timeout_s, [processor.force_flush for processor in self._processors])
        return in_time and not any(exporter.failing for exporter in self._outgoing)

    def _close(self, timeout_s: float) -> None:
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
        all_within(timeout_s, [_closing(processor) for processor in self._processors])


def start(
    run_id: str,
    to: Iterable[str],
    *,
    place: Place,
    resource: Mapping[str, AttributeValue] | None = None,
) -> LogBridge:
    """Send out what the root logger passes. Call it on the rank that exports, with the run id of `export.start`.

    `to` names destinations as there; a scraped one takes no logs. One that cannot be opened is a warning. Call it after
    `logging.basicConfig`, which does nothing once the root logger has a handler.

    Raises: ValueError if a destination cannot be.
    """
    outgoing = []
    for where in [destination(text) for text in to]:
        if not isinstance(where, Scrape):
            try:
                outgoing.append(_Outgoing(_exporter(where), where))
            except EmitterError as error:
                _log.warning("%s Training goes on without.", error)
    provider = _logs.LoggerProvider(sdk_resource(run_id, place.rank, resource or {}), shutdown_on_exit=False)
    return LogBridge(provider, outgoing)


def _exporter(where: Otlp | StandardOtlp | Console) -> Any:
    """An exporter of logs; its base class has had two names."""
    if isinstance(where, Console):
        names = ("ConsoleLogRecordExporter", "ConsoleLogExporter")
        console = next(getattr(_logs_export, name) for name in names if hasattr(_logs_export, name))
        return console(out=sys.stdout)
    return otlp_exporter(where, "logs")


def _closing(processor: _logs_export.BatchLogRecordProcessor) -> Any:
    """The processor's shutdown, for `all_within`, which looks after the time: it takes none."""
    return lambda timeout_millis: processor.shutdown()  # type: ignore[no-untyped-call]  # the SDK's


class _Handler(logging.Handler):
    """Hands records to the SDK's handler. Never raises, never waits for the network.

    The SDK's handler is deprecated for one in another package, which training images lack; but what a log record is
    made of changed several times between the SDKs that we allow, and theirs knows its own. It warns when it is made.
    """

    def __init__(self, provider: _logs.LoggerProvider) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LoggingHandler", DeprecationWarning)
            self._sdk = _logs.LoggingHandler(logger_provider=provider)
        # At exit logging flushes whatever handler there is: theirs starts a thread for it, which 3.12 forbids by then.
        self._sdk.flush = lambda: None  # type: ignore[method-assign]
        self._repeats = Repeats(_QUEUES)
        self._once = Once(__name__)
        self._process = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record."""
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and logging.getLogger().handlers == [self]:
            last.handle(record)  # a program that configured no logging is told its warnings, as it would be without us
        if record.name.partition(".")[0] in NOT_BRIDGED or os.getpid() != self._process:
            return  # a forked data loader reports nothing in the run's name
        with self._repeats.left_out():
            try:
                self._sdk.emit(_plain(record))
            except Exception as error:
                self._once.warn("emit", "emitter: a log record cannot be exported (got %r). Training goes on.", error)

    def close(self) -> None:
        """Let go of the loggers that say what is wrong with a queue."""
        self._repeats.close()
        super().close()


def _plain(record: logging.LogRecord) -> logging.LogRecord:
    """The record with nothing but what every exporter can encode: one that cannot be takes its batch with it."""
    extras = {name: value for name, value in vars(record).items() if name not in _STANDARD and _is_plain(value)}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:  # the SDK's handler would tell it as it is
        extras |= {"exception.type": type(error).__name__, **exception_texts(error)}
    standard = {name: getattr(record, name) for name in _STANDARD if hasattr(record, name)}
    plain = logging.LogRecord("", 0, "", 0, "", (), None)  # not by the factory, which may be the program's own
    vars(plain).update({**standard, **extras, "msg": utf8(record.getMessage()), "args": (), "exc_info": None})
    return plain


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return value == utf8(value)
    return isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() <= WHOLE_BITS)


class _Outgoing:
    """An exporter that does not repeat its complaints."""

    def __init__(self, exporter: Any, where: Destination) -> None:
        self._exporter = exporter
        self._where = where
        self._process = os.getpid()
        self._repeats = Repeats(sorted({*speakers(type(exporter)), *_QUEUES}))
        self.failing = False

    def export(self, batch: Sequence[Any]) -> Any:
        """Send the records. Never raises."""
        result: Any = None
        if os.getpid() != self._process:
            return result
        with self._repeats.sending(_log, self._where, "logs"):
            result = self._exporter.export(batch)
        self.failing = getattr(result, "name", "") != "SUCCESS"  # the enumeration has had two names, too
        if not self.failing:
            self._repeats.forget()
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return True

    def shutdown(self) -> None:
        """As the exporter does."""
        self._repeats.close()
        self._exporter.shutdown()
