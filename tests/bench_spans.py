"""Cost of a span whose group is off, as ratios measured in one run; `make bench` prints them."""

from __future__ import annotations

from contextlib import nullcontext

from bench_emitter import Result, _ratio

from emitter import spans
from emitter.spans import managed_span, trace_fn

OFF_LIMIT = 1.0  # a span whose group is off costs no more than a block that does nothing
CALLS = 20_000


def _nothing() -> None:
    with nullcontext():
        pass


def _called_in_nothing() -> None:
    with nullcontext():
        _empty()


def _empty() -> None:
    pass


def _off() -> None:
    with managed_span("layer", "megatron.layer.mlp"):
        pass


def results() -> list[Result]:
    """Every measurement."""
    spans.disable()
    return [
        ("managed_span, off / nullcontext()", _ratio(_off, _nothing, CALLS), OFF_LIMIT),
        (
            "trace_fn, off / a call in nullcontext()",
            _ratio(trace_fn("layer", "megatron.layer.mlp")(_empty), _called_in_nothing, CALLS),
            OFF_LIMIT,
        ),
    ]
