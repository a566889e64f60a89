"""Writes the metrics of a training run. Import this in a training process; it needs the OpenTelemetry API alone.

A loop of one's own:

    from megatron_watch import TrainingRun

    with TrainingRun(to="scrape:9464") as run:  # needs megatron-watch[otlp]
        run.step(loss=2.5, tokens=4_194_304)

In Megatron-LM, instead of its function of the same name; MEGATRON_OTEL_* say what is exported, and by which ranks:

    from megatron_watch import record_training_metrics, set_up

    telemetry = set_up(args)
    record_training_metrics(telemetry.meter, step_duration_ms=1500.0, loss=2.5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import catalog
from .errors import EmitterError
from .instruments import record, record_training_metrics

if TYPE_CHECKING:
    from .export import start
    from .loop import TrainingRun
    from .ranks import register_rank_strategy
    from .sampling import register_sampling_strategy
    from .settings import add_cli_arguments
    from .setup import Telemetry, set_up
    from .spans import is_span_group_enabled, managed_span, safe_set_span_attributes, span_cm, trace_fn
    from .timers import record_phase_times
    from .torchtitan import record_torchtitan_metrics

__all__ = [
    "EmitterError",
    "Telemetry",
    "TrainingRun",
    "add_cli_arguments",
    "catalog",
    "is_span_group_enabled",
    "managed_span",
    "record",
    "record_phase_times",
    "record_torchtitan_metrics",
    "record_training_metrics",
    "register_rank_strategy",
    "register_sampling_strategy",
    "safe_set_span_attributes",
    "set_up",
    "span_cm",
    "start",
    "trace_fn",
]

_HOMES = {
    "Telemetry": "setup",
    "TrainingRun": "loop",
    "add_cli_arguments": "settings",
    "is_span_group_enabled": "spans",
    "managed_span": "spans",
    "record_phase_times": "timers",
    "record_torchtitan_metrics": "torchtitan",
    "register_rank_strategy": "ranks",
    "register_sampling_strategy": "sampling",
    "safe_set_span_attributes": "spans",
    "set_up": "setup",
    "span_cm": "spans",
    "trace_fn": "spans",
}
"""Module of each name that is loaded when it is asked for: an import costs a training process next to nothing."""


def __getattr__(name: str) -> Any:
    """Load what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


if not TYPE_CHECKING:

    def start(*arguments: Any, **options: Any) -> Any:
        """Open the ways out of one run: `export.start`, loaded here since it loads the SDK.

        Raises: EmitterError if that is not installed.
        """
        try:
            from . import export
        except ImportError as error:
            raise EmitterError(
                f"emitter.start: needs the OpenTelemetry SDK (got {error}). Install megatron-watch[otlp]."
            ) from error
        return export.start(*arguments, **options)
