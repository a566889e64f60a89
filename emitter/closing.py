"""Ends things in time. Standard library only."""

from __future__ import annotations

import atexit
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

CLOSING_TIME_S = 3.0
"""Time that a flush or a shutdown may take; a collector that is well answers within one second."""

_log = logging.getLogger(__name__)


class Closing(ABC):
    """What ends once: at its shutdown, at the end of its block, or with its process, and never in a forked child."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._closed = False
        atexit.register(self.shutdown)

    def shutdown(self, timeout_s: float = CLOSING_TIME_S) -> None:
        """Push what is left and close every way out, even if a collector hangs."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self.shutdown)
        self._close(timeout_s)

    @abstractmethod
    def _close(self, timeout_s: float) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def all_within(timeout_s: float, calls: Sequence[Callable[..., object]]) -> bool:
    """Make the calls at the same time, so that one that hangs costs the others nothing; whether all succeeded."""
    deadline = time.monotonic() + timeout_s
    done: list[bool] = []

    def run(call: Callable[..., object]) -> None:
        try:
            done.append(call(timeout_millis=timeout_s * 1000) is not False)  # how a flush says that time is up
        except Exception as error:
            _log.warning("emitter: a way out failed (got %r).", error)

    threads = [Thread(target=run, args=(call,), name="megatron-watch", daemon=True) for call in calls]
    for thread in threads:
        try:
            thread.start()
        except RuntimeError:  # the interpreter is on its way out and starts no thread any more
            thread.run()
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
    return len(done) == len(calls) and all(done)
