"""Megatron-LM's timers in each of their forms."""

from __future__ import annotations

import pytest

from emitter import catalog
from emitter.readers import reader
from emitter.records import Record

MIN_MAX = """\
(min, max) time across ranks (ms):
    forward-backward ...............................: (1200.50, 1210.25)
    all-grads-sync .................................: (50.00, 75.00)
    my own timer ...................................: (1.00, 2.00)
"""
MAX = """\
max time across ranks (ms):
    forward-backward ...............................: 1400.50
    all-grads-sync .................................: 55.00
"""
ALL = """\
times across ranks (ms):
  forward-compute:
     rank  0: 1010.00
     rank  1: 1012.00
     rank 10: 2000.00
  optimizer:
     rank  0: 20.00
     rank  1: 21.00
"""
LINE = "time (ms) | forward-compute: 143.50 | batch generator: 2.00 | evaluate: 9000.00\n"


def timers(text: str) -> list[Record]:
    log = reader("megatron")
    records = log.feed(text.encode()) + log.close()
    assert log.counts.total == len(text.splitlines())
    return records


def seconds(text: str) -> dict[str, float]:
    """Time by phase and aggregate."""
    (record,) = timers(text)
    return {" ".join(key): value for key, value in record.series[catalog.TIMER_DURATION].items()}


def test_minimum_and_maximum() -> None:
    """A block of pairs is read, each timer as the phase that dashboards know; its own name is kept for another."""
    assert seconds(MIN_MAX) == {
        "forward-backward min": 1.2005,
        "forward-backward max": 1.21025,
        "grads-reduce-scatter min": 0.05,
        "grads-reduce-scatter max": 0.075,
        "my own timer min": 0.001,
        "my own timer max": 0.002,
    }


def test_maximum() -> None:
    """A block of maxima has no minimum."""
    assert seconds(MAX) == {"forward-backward max": 1.4005, "grads-reduce-scatter max": 0.055}


def test_all_ranks() -> None:
    """Of the times of all ranks, fastest and slowest count."""
    assert seconds(ALL) == {
        "forward-compute min": 1.01,
        "forward-compute max": 2.0,
        "optimizer min": 0.02,
        "optimizer max": 0.021,
    }


def test_one_rank() -> None:
    """The rank of a single line is the fastest and the slowest one that was seen."""
    assert seconds(LINE) == {
        "forward-compute min": 0.1435,
        "forward-compute max": 0.1435,
        "batch-generator min": 0.002,
        "batch-generator max": 0.002,
    }


def test_timers_with_a_metric_of_their_own() -> None:
    """Evaluations and checkpoints are no part of an iteration."""
    assert timers(LINE)[0].values == {catalog.EVALUATION_DURATION: 9.0}
    (record,) = timers(
        "(min, max) time across ranks (ms):\n"
        "    save-checkpoint ................................: (4000.00, 5000.00)\n"
        "    load-checkpoint ................................: (1000.00, 1500.00)\n"
    )
    assert record.values == {catalog.CHECKPOINT_SAVE_DURATION: 5.0, catalog.CHECKPOINT_LOAD_DURATION: 1.5}
    assert record.series == {}


@pytest.mark.parametrize("text", [MIN_MAX, MAX, ALL])
def test_a_block_ends_where_something_else_begins(text: str) -> None:
    """The line behind a block is no part of it, and the block is told before it."""
    records = timers(text + "something else\n" + text + "Evaluating on 32 samples\n")
    assert [record.kind for record in records] == ["timers", "timers", "phase"]


def test_bare() -> None:
    """A heading without timers says nothing."""
    assert timers("time (ms)\n(min, max) time across ranks (ms):\n") == []
