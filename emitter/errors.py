"""The one exception of this package for what fails at run time."""


class EmitterError(Exception):
    """Metrics cannot be sent or a log cannot be read; the message is one line for the user."""


def missing_library(where: object, error: ImportError) -> EmitterError:
    """The error of a way out whose library is not installed."""
    return EmitterError(f"{where}: needs a library (got {error}). Install megatron-watch[otlp].")
