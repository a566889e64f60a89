"""Keeps a log readable while something fails over and over. Standard library only."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Once:
    """Warnings of a logger, by its name; each kind is given once."""

    def __init__(self, logger: str) -> None:
        self._log = logging.getLogger(logger)
        self._given: set[str] = set()

    def warn(self, kind: str, message: str, *details: object) -> None:
        """Give the warning if it is the first of its kind."""
        if kind not in self._given:
            self._given.add(kind)
            self._log.warning(message, *details)


def speakers(kind: type) -> set[str]:
    """Names of the loggers through which a class and its bases may speak: those of their modules."""
    return {base.__module__ for base in kind.__mro__} - {"builtins"}


class Repeats(logging.Filter):
    """Lets each message of some loggers through once, until `forget`; others' messages always."""

    def __init__(self, loggers: Iterable[str]) -> None:
        super().__init__()
        self._loggers = [logging.getLogger(name) for name in loggers]
        self._seen: set[tuple[int, str]] = set()
        self._here = threading.local()
        self._lock = threading.Lock()
        self._users = 1  # the owner, until it closes, and the threads inside
        self.closed = False
        """Whether its owner has come to its end."""
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
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            self._here.inside = False
            self._release()

    @contextmanager
    def sending(self, log: logging.Logger, where: object, what: str) -> Iterator[None]:
        """Where this thread exports: what is raised is reported, and not again. Nothing leaves the block."""
        with self.left_out():
            try:
                yield
            except Exception as error:
                if not self.closed:  # under way when we closed the channel: the collector is not to blame
                    log.warning("%s: must take the %s (got %r). Training goes on without.", where, what, error)

    def forget(self) -> None:
        """Whatever failed works again: the next failure is news."""
        self._seen.clear()

    def close(self) -> None:
        """Let go of the loggers, when the last thread has left: one that hangs would else repeat itself at the end."""
        self.closed = True
        self._release()

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            over = self._users == 0
        if over:
            for logger in self._loggers:
                logger.removeFilter(self)
