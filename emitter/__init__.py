"""Writes the metrics of a training run. Import this in a training process; it needs the OpenTelemetry API alone."""
