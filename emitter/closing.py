"""Ends things in time. Standard library only."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread

CLOSING_TIME_S = 3.0
"""Time that a flush or a shutdown may take; a collector that is well answers within one second."""

_log = logging.getLogger(__name__)


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
