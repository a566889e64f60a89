"""Whole logs of several ranks that print the same, in any order: one run, told once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitter import catalog
from emitter.readers import megatron_deepspeed, reader, torchtitan
from emitter.readers.echoes import SORTS, SOURCES, Echoes
from emitter.readers.history import LATE, History
from emitter.readers.readings import Reading
from emitter.records import Record

BEGIN = "[titan] 2031-05-06 07:{:02d}:00,321 - root - INFO - "
MESH = "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=4"


def titan(number: int) -> str:
    """A training line of torchtitan."""
    return torchtitan.FAMILY.example.replace("07:08:09", f"07:{number // 10:02d}:09").replace("120", str(number))


def torchtitan_attempt(first: int) -> list[str]:
    """A process from its first line to its last; from the second one on it goes on from a checkpoint."""
    lines = [BEGIN.format(first // 10) + MESH, BEGIN.format(first // 10) + f"Training starts at step {first}"]
    for number in range(first + 9, first + 80, 10):
        lines.append(titan(number))
        lines.append(BEGIN.format(number // 10) + f"WARNING: {number // 10} CUDA memory allocation retries.")
        if number % 20 == 0:
            lines.append(BEGIN.format(number // 10) + f"validate step: {number}  loss:  3.1250  tps: 6,001  ")
            lines.append(BEGIN.format(number // 10) + "Saving the checkpoint (or staging if async is enabled).")
            lines.append(BEGIN.format(number // 10) + "Finished saving the checkpoint in 60.00 seconds.")
    return lines


def deepspeed_step(number: int) -> list[str]:
    """What Megatron-DeepSpeed prints for an iteration: an overflow now and then, the line, timers, validation."""
    stamp = f"[2031-05-06 07:{number // 60:02d}:{number % 60:02d},321] [INFO] "
    lines = [megatron_deepspeed.FAMILY.example.replace("    120/", f"{number:7d}/")]
    if number % 3 == 0:
        lines.insert(0, stamp + "[deepspeed] fp16 dynamic loss scale overflow! Skipping step.")
    lines.append("time (ms) | forward-compute: 143.50 | backward-compute: 395.25 | optimizer: 85.75")
    if number % 4 == 0:
        lines.append(f" validation loss at iteration {number} | lm loss value: 3.5 | lm loss PPL: 3.3E+01 | ")
    return lines


RUNS = (
    [*torchtitan_attempt(1), BEGIN.format(9) + "Training completed"],
    [
        "using world size: 4, data-parallel-size: 4, tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
        *(line for number in range(1, 13) for line in deepspeed_step(number)),
        "[exiting program at iteration 12] datetime: 2031-05-06 07:01:00.000000 ",
    ],
)


def read(lines: list[str]) -> list[Record]:
    log = reader()
    text = "".join(f"{line}\n" for line in lines)
    records = log.feed(text.encode()) + log.close()
    assert log.counts.total == len(lines)
    return records


def interleaved(run: list[str], ranks: int, lag: int, order: random.Random) -> list[str]:
    """The lines of ranks of which none is more than so many lines behind another."""
    at = [0] * ranks
    mixed = []
    while min(at) < len(run):
        rank = order.choice([rank for rank in range(ranks) if at[rank] < min(len(run), min(at) + lag)])
        mixed.append(f"{rank}: {run[at[rank]]}")
        at[rank] += 1
    return mixed


@pytest.mark.parametrize("run", RUNS, ids=["torchtitan", "megatron-deepspeed"])
@given(st.randoms(use_true_random=False), st.integers(2, 4), st.integers(1, 15))
def test_ranks_in_any_order(run: list[str], order: random.Random, ranks: int, lag: int) -> None:
    """Start, timers, validation, checkpoints, skips, end: from several ranks the same as from one alone."""
    alone = read([f"0: {line}" for line in run])
    assert len({record.kind for record in alone}) >= 5
    assert [repr(record) for record in read(interleaved(run, ranks, lag, order))] == [repr(record) for record in alone]


@given(st.randoms(use_true_random=False), st.integers(2, 4))
def test_ranks_that_start_again(order: random.Random, ranks: int) -> None:
    """A second start is the next attempt, whichever rank is the first to tell."""
    first, second = torchtitan_attempt(1), torchtitan_attempt(51)
    alone = read([f"0: {line}" for line in first + second])
    assert [record.attempt for record in alone if record.kind in ("start", "resume")] == [0, 1, 1]
    mixed = interleaved(first, ranks, 6, order) + interleaved(second, ranks, 6, order)
    assert [repr(record) for record in read(mixed)] == [repr(record) for record in alone]


def told(*lines: tuple[Reading, str]) -> list[tuple[str, int]]:
    """Kinds of records with their attempts."""
    history = History()
    return [(one.kind, one.attempt) for reading, source in lines for one in history.take(reading, source, "")]


def step(iteration: int, loss: float = 2.5) -> Reading:
    return Reading(kind="train", iteration=iteration, values={catalog.LOSS: loss})


START = Reading(kind="start")


def test_late_start() -> None:
    """A rank that tells late that it starts begins no attempt; one that has trained does."""
    late = [(START, "0:"), (step(1), "0:"), (START, "1:"), (step(1), "1:")]
    assert told(*late) == [("start", 0), ("train", 0)]
    assert told(*late, (START, "1:"), (START, "0:")) == [("start", 0), ("train", 0), ("start", 1)]


def test_start_of_a_process_with_another_name() -> None:
    """Where each process has a name of its own, a start is an attempt if the run had ended or was far on."""
    ended = [(START, "pid=1"), (step(1), "pid=1"), (Reading(kind="end"), "pid=1"), (START, "pid=2")]
    assert told(*ended)[-1] == ("start", 1)
    far = [(START, "pid=1"), *((step(number), "pid=1") for number in range(LATE + 1)), (START, "pid=2")]
    assert told(*far)[-1] == ("start", 1)
    assert told(*far[:-2], far[-1])[-1] == ("train", 0)


def test_validation_of_the_same_iteration() -> None:
    """The same loss again, or another rank's, is no news; another loss from the same rank is."""

    def validation(loss: float) -> Reading:
        return Reading(kind="validation", iteration=30, values={catalog.VALIDATION_LOSS: loss})

    lines = [(validation(3.5), ""), (validation(3.5), ""), (validation(3.25), "7:"), (validation(3.0), "")]
    assert told(*lines) == [("validation", 0), ("validation", 0)]


def test_bars_of_two_ranks() -> None:
    """A line without an iteration is about the one that its own rank has counted."""
    history = History()
    for iteration, source in ((20, "0:"), (10, "1:")):
        history.take(Reading(kind="ahead", values={catalog.ITERATION: iteration}), source, "")
    line = Reading(kind="train", values={catalog.LOSS: 2.5})
    (record,) = history.take(line, "0:", "")
    assert record.values[catalog.ITERATION] == 20
    assert history.take(line, "1:", "") == []


def test_a_bar_places_one_line() -> None:
    """What a bar has counted is taken by the next line, also if that tells its own iteration."""
    bar = Reading(kind="ahead", values={catalog.ITERATION: 20})
    unplaced = Reading(kind="train", values={catalog.LOSS: 2.25})
    assert told((bar, ""), (step(20), ""), (unplaced, "")) == [("train", 0)]


def test_memory_is_bounded() -> None:
    """Sources and sorts of statements without end are forgotten."""
    echoes = Echoes()
    for number in range(SOURCES + 100):
        echoes.is_news(Reading(kind="phase", phase=f"{number}"), f"node{number}:", anew=False)
        echoes.is_news(Reading(kind="phase", phase=f"{number}"), "", anew=False)
    assert (len(echoes._said), len(echoes._said[""]), len(echoes._told)) == (SOURCES, SORTS, SORTS)
