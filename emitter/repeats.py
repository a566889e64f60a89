"""Keeps a log readable while a collector is down. Standard library only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Repeats(logging.Filter):
    """Lets each message of some loggers through once, until `forget`; others' messages always."""

    def __init__(self, loggers: Iterable[str]) -> None:
        super().__init__()
        self._loggers = [logging.getLogger(name) for name in loggers]
        self._seen: set[tuple[int, str]] = set()
        self._here = threading.local()
        for logger in self._loggers:
            logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is new, or not from inside `left_out`."""
        message = (record.levelno, str(record.msg))  # before formatting: the numbers in it differ each time
        if not getattr(self._here, "inside", False):
            return True
        if message in self._seen:
            return False
        self._seen.add(message)
        return True

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Where this thread repeats itself."""
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = False

    def forget(self) -> None:
        """Whatever failed works again: the next failure is news."""
        self._seen.clear()

    def close(self) -> None:
        """Let go of the loggers."""
        for logger in self._loggers:
            logger.removeFilter(self)
