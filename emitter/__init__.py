"""Writes the metrics of a training run. Import this in a training process; it needs the OpenTelemetry API alone.

In a training loop, instead of Megatron-LM's function of the same name:

    from megatron_watch import record_training_metrics, start

    export = start("my-run", to=["scrape:9464"])  # on the exporting rank; needs megatron-watch[otlp]
    record_training_metrics(export.meter, step_duration_ms=1500.0, loss=2.5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import catalog
from .errors import EmitterError
from .instruments import record, record_training_metrics

__all__ = ["EmitterError", "catalog", "record", "record_training_metrics", "start"]

if TYPE_CHECKING:
    from .export import start
else:

    def start(*args: Any, **options: Any) -> Any:
        """Open the ways out of one run: `export.start`, loaded here since a training image may lack the SDK.

        Raises: EmitterError if it does.
        """
        try:
            from . import export
        except ImportError as error:
            raise EmitterError(
                f"emitter.start: needs the OpenTelemetry SDK (got {error}). Install megatron-watch[otlp]."
            ) from error
        return export.start(*args, **options)
