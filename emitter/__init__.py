"""Writes the metrics of a training run. Import this in a training process; it needs the OpenTelemetry API alone."""

from . import catalog
from .instruments import record, record_training_metrics

__all__ = ["catalog", "record", "record_training_metrics"]
