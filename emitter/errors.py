"""The one exception of this package for what fails at run time."""


class EmitterError(Exception):
    """Metrics cannot be sent or a log cannot be read; the message is one line for the user."""
