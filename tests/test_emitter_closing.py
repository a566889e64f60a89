"""The end of a way out: in time, and also where no thread can be had any more."""

from __future__ import annotations

import logging
import threading

import pytest

from emitter import closing
from emitter.closing import all_within


def test_one_that_hangs_costs_the_others_nothing() -> None:
    """All are called at the same time, and who has not answered in time is not waited for."""
    released = threading.Event()
    done = []
    calls = [lambda timeout_millis: released.wait(60), lambda timeout_millis: done.append(timeout_millis)]
    assert not all_within(0.2, calls)
    released.set()
    assert done == [200]


def test_a_failure_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A call that raises is a warning, one that says False is none; neither is a success."""

    def fails(timeout_millis: float) -> None:
        raise OSError("no route")

    assert not all_within(5, [fails, lambda timeout_millis: True])
    assert [record.message for record in caplog.records] == ["emitter: a way out failed (got OSError('no route'))."]
    assert not all_within(5, [lambda timeout_millis: False])
    assert all_within(5, [lambda timeout_millis: None])
    assert len(caplog.records) == 1


def test_without_threads_it_is_done_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An interpreter on its way out starts none: then the calls are made one after the other."""

    class Late(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(closing, "Thread", Late)
    done: list[int] = []
    assert all_within(5, [lambda timeout_millis: done.append(1), lambda timeout_millis: done.append(2)])
    assert done == [1, 2]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
