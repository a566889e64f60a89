"""Spans by group: what Megatron-LM's call sites know, and the switch that turns groups on.

The groups that are on are state of the module, since the call sites carry no handle. Nothing is on at first,
and a process that does not export leaves it so: then a call site costs one look-up in a set.

Needs the OpenTelemetry API only, and does nothing where even that is missing.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from .plain import TEXT_LIMIT, AttributeValue, exception_texts, plain, utf8
from .repeats import Once
from .span_table import GROUPS, lookup

try:
    from opentelemetry import context as _context
    from opentelemetry import trace as _trace
except ImportError:
    _trace = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from contextvars import Token
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

__all__ = [
    "GROUPS",
    "PRESETS",
    "disable",
    "enable",
    "is_span_group_enabled",
    "managed_span",
    "measured_as",
    "resolve",
    "safe_set_span_attributes",
    "span_cm",
    "trace_fn",
]

_DEFAULT = frozenset({"job", "checkpoint", "evaluate", "first_iteration", "inference"})
_PER_STEP = _DEFAULT | {
    *("model_init", "load_checkpoint", "step", "forward_backward", "optimizer", "communication", "data_loading"),
}

PRESETS = {
    "default": _DEFAULT,
    "per_step": _PER_STEP,
    "all": frozenset(GROUPS),
    "profiling": frozenset(GROUPS),
}
"""Groups that go by one word."""

OTHER = "other"
"""Name and group under which a span is measured that nobody knows."""

CUSTOM_LIMIT = 32
"""Names outside the table that are measured under their own name: a name may hold a number that grows."""

_Function = TypeVar("_Function", bound=Callable[..., Any])

_nothing: AbstractContextManager[None] = nullcontext()
_groups: frozenset[str] = frozenset()
_tracer: Tracer | None = None
_custom: dict[str, str] = {}
_lock = Lock()
_once = Once(__name__)


def resolve(specification: str) -> frozenset[str]:
    """The groups that a preset, a group or a comma-separated mix names; nothing named is the default.

    Raises: ValueError that lists what exists.
    """
    words = [word for word in (part.strip() for part in specification.split(",")) if word]
    known = {**{group: frozenset({group}) for group in GROUPS}, **PRESETS}
    unknown = [word for word in words if word not in known]
    if unknown:
        near = [match for word in unknown for match in difflib.get_close_matches(word, known, 1)]
        hint = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
        raise ValueError(
            f"emitter.spans: a specification names presets ({', '.join(PRESETS)}) "
            f"or groups ({', '.join(GROUPS)}) (got {', '.join(map(repr, unknown))}).{hint}"
        )
    return frozenset().union(*(known[word] for word in words)) if words else PRESETS["default"]


def enable(groups: frozenset[str], tracer: Tracer) -> None:
    """Turn exactly these groups on. Call it on the rank that exports.

    Raises: ValueError if one is no group.
    """
    global _groups, _tracer
    if unknown := sorted(groups.difference(GROUPS)):
        raise ValueError(
            f"emitter.spans.enable: a group is one of {', '.join(GROUPS)} "
            f"(got {', '.join(map(repr, unknown))}). Use spans.resolve for presets."
        )
    if _trace is None:
        return
    with _lock:
        _custom.clear()
        _tracer = tracer
        _groups = groups


def disable(tracer: Tracer | None = None) -> None:
    """Turn every group off, unless they are on for another than this tracer; spans that are open end as they would."""
    global _groups, _tracer
    with _lock:
        if tracer is not None and tracer is not _tracer:
            return
        _groups = frozenset()
        _tracer = None


def is_span_group_enabled(group: str) -> bool:
    """Whether a group is on, for who has work to do before a span opens."""
    return group in _groups


def managed_span(
    group: str,
    name: str,
    tracer: Any = None,  # a Tracer; so declared, `**{"megatron.iteration": 7}` would not pass a type checker
    **attributes: object,
) -> AbstractContextManager[Span | None]:
    """A span around a block while its group is on, which the block is given; else None.

    An exception marks the span and goes on. Spans of one thread nest. Values that OpenTelemetry does not take
    are read with float(): for a tensor this waits for the device, but only while the group is on. Text is cut.
    """
    if group not in _groups:
        return _nothing
    tracer = tracer or _tracer
    if tracer is None:  # turned off this moment
        return _nothing
    return _Opened(tracer, name, attributes, group=group)


def span_cm(
    name: str,
    tracer: Any = None,  # as in `managed_span`
    record_exception: Any = True,
    **attributes: object,
) -> AbstractContextManager[Span | None]:
    """A span around a block, whatever the groups; None where nothing is on and no tracer is given."""
    tracer = tracer or _tracer
    if tracer is None or _trace is None:
        return _nothing
    return _Opened(tracer, name, attributes, record_exception=record_exception)


def trace_fn(group: str, name: str, tracer: Tracer | None = None) -> Callable[[_Function], _Function]:
    """A decorator that puts `managed_span` around each call of a function or coroutine function.

    Whether the group is on is asked at each call. Of a generator function only the making is in the span.
    """

    def decorate(function: _Function) -> _Function:
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def traced(*args: Any, **options: Any) -> Any:
                with managed_span(group, name, tracer):
                    return await function(*args, **options)
        else:

            @wraps(function)
            def traced(*args: Any, **options: Any) -> Any:
                if group not in _groups:  # also true of managed_span, but this is half the price
                    return function(*args, **options)
                with managed_span(group, name, tracer):
                    return function(*args, **options)

        return traced  # type: ignore[return-value]  # has the signature of what it wraps

    return decorate


def safe_set_span_attributes(span: Span | None, attributes: Mapping[str, object]) -> None:
    """Set attributes of a span that may be None, read as `managed_span` reads them. Never raises."""
    try:
        if span is not None and span.is_recording():
            span.set_attributes(_readable(attributes))
    except Exception as error:
        _once.warn("set", "emitter: attributes of a span cannot be set (got %r). Training goes on.", error)


def measured_as(name: str) -> tuple[str, str]:
    """Name and group under which a span of this name is measured: one of a bounded number, whatever comes."""
    span = lookup(name)
    if span is not None:
        return span.name, span.group
    group = _custom.get(name)
    return (OTHER, OTHER) if group is None else (name, group)


def _remember(name: str, group: str) -> None:
    """Let a name that no table has be measured under itself, if it can be a label and there are not too many."""
    if name in _custom or len(_custom) >= CUSTOM_LIMIT or lookup(name) is not None:
        return
    if 0 < len(name) <= TEXT_LIMIT and name.isprintable():
        with _lock:
            if len(_custom) < CUSTOM_LIMIT:
                _custom[name] = group


def _readable(attributes: Mapping[str, object]) -> dict[str, AttributeValue]:
    """The attributes as OpenTelemetry takes them; None is left out."""
    return {key: plain(value) for key, value in attributes.items() if value is not None}


class _Opened:
    """A span from entering to leaving. Of what OpenTelemetry does nothing is raised, an interrupt apart."""

    __slots__ = ("_attributes", "_group", "_name", "_record_exception", "_span", "_token", "_tracer")

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        attributes: Mapping[str, object],
        *,
        group: str | None = None,
        record_exception: bool = True,
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._group = group
        self._record_exception = record_exception
        self._span: Span | None = None
        self._token: Token[Context] | None = None

    def __enter__(self) -> Span | None:
        self._safely(self._open)
        return self._span

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            self._safely(self._detach, self._token)
        if self._span is not None:
            if self._record_exception and isinstance(error, Exception):  # an exit or an interrupt is no error
                self._safely(self._mark, self._span, error)
            self._safely(self._end, self._span)

    def _open(self) -> None:
        if self._group is not None:
            _remember(self._name, self._group)
        self._span = self._tracer.start_span(utf8(self._name), attributes=_readable(self._attributes))
        self._token = _context.attach(_trace.set_span_in_context(self._span))

    @staticmethod
    def _detach(token: Token[Context]) -> None:
        with suppress(ValueError):  # entered in another thread or task, whose context is its own
            token.var.reset(token)  # not by `context.detach`, which logs that with a traceback

    @staticmethod
    def _mark(span: Span, error: Exception) -> None:
        span.set_status(_trace.StatusCode.ERROR, type(error).__name__)
        span.record_exception(error, exception_texts(error))

    @staticmethod
    def _end(span: Span) -> None:
        span.end()

    def _safely(self, step: Callable[..., object], *arguments: object) -> None:
        try:
            step(*arguments)
        except Exception as error:
            _once.warn(
                type(error).__name__, "emitter: the span %r failed (got %r). Training goes on.", self._name, error
            )
