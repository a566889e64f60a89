"""What a line means depends on those before it: attempts, ranks, totals, what is printed twice or not at all."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers.history import History
from emitter.readers.readings import Reading
from emitter.records import Record, training_result

TARGET = {catalog.TARGET_ITERATION: 90}


def train(iteration: int, loss: float | None = 2.5, step_ms: float = 1000.0, **more: Any) -> Reading:
    values = {catalog.STEP_DURATION: step_ms, **TARGET, **({} if loss is None else {catalog.LOSS: loss})}
    return Reading(kind="train", iteration=iteration, values=values, **more)


def told(*lines: tuple[Reading, str]) -> list[Record]:
    """Records of readings with their sources."""
    history = History()
    return [record for reading, source in lines for record in history.take(reading, source, reading.stamp)]


def steps(*lines: tuple[Reading, str]) -> list[tuple[int, int]]:
    """Attempt and iteration of the results."""
    return [(one.attempt, int(one.values[catalog.ITERATION])) for one in told(*lines) if one.kind == "train"]


def test_ranks_that_say_the_same_are_one() -> None:
    """The same iteration from other ranks is no news, late or not, equal or not."""
    lines = [(train(1), "0:"), (train(1), "1:"), (train(2), "1:"), (train(2, 2.6), "0:"), (train(1), "2:")]
    assert steps(*lines) == [(0, 1), (0, 2)]


def test_same_rank_says_the_same_again() -> None:
    """A line that is printed twice is one record."""
    assert steps((train(1), "0:"), (train(1), "0:"), (train(2), ""), (train(2, math.nan), "9:")) == [(0, 1), (0, 2)]


def test_same_rank_with_new_values_is_the_next_attempt() -> None:
    """An iteration that a rank reports anew was trained anew, also if it is the same one."""
    lines = [(train(5), "0:"), (train(6), "0:"), (train(5, 2.4), "0:"), (train(6, 2.3), "0:"), (train(6, 2.2), "0:")]
    assert steps(*lines) == [(0, 5), (0, 6), (1, 5), (1, 6), (2, 6)]


@pytest.mark.parametrize("begin", [[], [(Reading(kind="start"), "0:")]], ids=["no start line", "start line"])
def test_a_rank_that_is_late_for_a_dead_attempt(begin: list[tuple[Reading, str]]) -> None:
    """What a slower rank prints of the attempt before is no news of the next one; what it prints of that one is."""
    dead = [(train(5), "0:"), (train(5), "1:"), (train(6, 2.4), "0:"), (train(7, 2.3), "0:")]
    late = [(train(6, 2.4), "1:"), (train(7, 2.3), "1:")]
    again = [(train(6, 2.1), "0:"), (train(6, 2.1), "1:"), (train(7, 2.0), "1:"), (train(7, 2.0), "0:")]
    for lines in ([*dead, *begin, *late, *again], [*dead, *begin, again[0], *late, *again[1:]]):
        found = [(one.attempt, one.values[catalog.LOSS]) for one in told(*lines) if one.kind == "train"]
        assert found == [(0, 2.5), (0, 2.4), (0, 2.3), (1, 2.1), (1, 2.0)]


def test_ranks_without_a_name() -> None:
    """Where lines do not tell their source, the same loss is the same line, whatever the speed."""
    lines = [(train(5), ""), (train(5, step_ms=1001.0), ""), (train(6, math.nan), ""), (train(6, math.nan, 9.0), "")]
    assert steps(*lines) == [(0, 5), (0, 6)]
    assert steps((train(5), ""), (train(5, 2.4), "")) == [(0, 5), (1, 5)]


def test_another_target_is_another_attempt() -> None:
    """A line towards another end is of another process, whoever prints it."""
    other = Reading(kind="train", iteration=1, values={catalog.TARGET_ITERATION: 50, catalog.LOSS: 9.0})
    assert steps((train(25), "1:"), (other, "")) == [(0, 25), (1, 1)]


def test_start_and_resume_begin_an_attempt() -> None:
    """A process that starts, or loads a checkpoint, after one that has trained is the next attempt; else it is not."""
    start = Reading(kind="start", settings={"world_size": 8})
    resume = Reading(kind="resume", iteration=5)
    records = told((start, ""), (resume, ""), (train(6), ""), (start, ""), (resume, ""), (train(6), ""), (resume, ""))
    assert [(record.kind, record.attempt) for record in records if record.kind != "run"] == [
        ("start", 0),
        ("resume", 0),
        ("train", 0),
        ("start", 1),
        ("resume", 1),
        ("train", 1),
        ("resume", 2),
    ]
    assert records[2].values == {catalog.CHECKPOINT_LAST_ITERATION: 5}


def test_totals_become_what_is_new() -> None:
    """A counter that is printed as a total since the start counts each skip once, also in the next attempt."""
    skipped = [{"cumulative": {catalog.SKIPPED_ITERS: total}} for total in (2, 2, 5)]
    lines = [(train(step, **more), "") for step, more in enumerate(skipped, 1)]
    again = (train(1, 1.5, cumulative={catalog.SKIPPED_ITERS: 1}), "")
    assert [one.values[catalog.SKIPPED_ITERS] for one in told(*lines, again)] == [2, 0, 3, 1]


def test_per_gpu_values_need_the_world_size() -> None:
    """A value for one GPU becomes the job's if the log tells how many there are; else there is none."""
    one = train(1, per_gpu={catalog.TOKENS_PER_SEC: 100})
    settings = Reading(kind="settings", settings={"world_size": 8, "seq_length": 2048, "global_batch_size": 4})
    (record,) = told((one, ""))
    assert catalog.TOKENS_PER_SEC not in record.values
    assert told((settings, ""), (one, ""))[-1].values[catalog.TOKENS_PER_SEC] == 800
    assert told((settings, ""), (train(1, step_ms=500.0), ""))[-1].values[catalog.TOKENS_PER_SEC] == 16384.0


def test_first_value_of_an_argument_counts() -> None:
    """A library that prints an argument of the same name does not change the run; a new process does."""
    first, other = (Reading(kind="settings", settings={"world_size": size}) for size in (64, 1))
    start = Reading(kind="start", settings={"world_size": 32})
    sizes = [
        record.values[catalog.WORLD_SIZE] for record in told((first, ""), (other, ""), (start, "")) if record.values
    ]
    assert sizes == [64, 32]


def test_step_duration_from_the_clock() -> None:
    """A layout that prints no duration has that between its lines, for each iteration."""
    lines = [
        (Reading(kind="train", iteration=step, values={catalog.LOSS: 1.0}, stamp=f"2031-01-01 00:00:{second}"), "")
        for step, second in ((10, "00"), (20, "25"))
    ]
    first, second = told(*lines)
    assert catalog.STEP_DURATION not in first.values
    assert second.values[catalog.STEP_DURATION] == 2500.0


def test_values_ahead_of_their_line() -> None:
    """Values that are printed before a training line belong to it, and to no other."""
    ahead = Reading(kind="ahead", values={catalog.THROUGHPUT_TFLOPS: 700.0})
    _, first, second = told((train(1), ""), (ahead, ""), (train(2), ""), (train(3), ""))
    assert first.values[catalog.THROUGHPUT_TFLOPS] == 700.0
    assert catalog.THROUGHPUT_TFLOPS not in second.values


def test_guard() -> None:
    """A value that stopped the run before its line is told once, however many ranks found it."""
    found = Reading(kind="guard", iteration=3, values={catalog.LOSS: math.nan})
    (record,) = told((found, "0:"), (found, "1:"))
    assert record.values[catalog.ITERATION] == 3
    assert math.isnan(record.values[catalog.LOSS])


def test_memory_of_several_ranks() -> None:
    """The largest value of a report counts; a later report may be smaller."""

    def memory(iteration: int, gib: float) -> tuple[Reading, str]:
        return Reading(kind="memory", iteration=iteration, values={catalog.MEMORY_ALLOCATED: gib}), ""

    records = told(memory(1, 5.0), memory(1, 4.0), memory(1, 6.0), memory(9, 3.0), memory(1, 7.0), memory(9, 3.0))
    assert [record.values[catalog.MEMORY_ALLOCATED] for record in records] == [5.0, 6.0, 3.0]


@pytest.mark.parametrize(
    ("begin", "seconds"), [("2031-01-01 00:00:00", 7.5), ("", None), ("2031-01-02 00:00:00", None)]
)
def test_length_of_a_checkpoint(begin: str, seconds: float | None) -> None:
    """A checkpoint took as long as between its two times; without them, or where they go back, nobody knows."""
    saving = Reading(kind="saving", iteration=5, stamp=begin)
    saved = Reading(kind="checkpoint", iteration=5, stamp="2031-01-01 00:00:07.500")
    timer = Reading(kind="timers", values={catalog.CHECKPOINT_SAVE_DURATION: 8.0})
    begun, done, timed = told((saving, ""), (saved, ""), (timer, ""))
    assert (begun.phase, done.phase) == ("checkpoint", "train")
    assert done.values.get(catalog.CHECKPOINT_SAVE_DURATION) == seconds
    assert done.values[catalog.CHECKPOINT_LAST_ITERATION] == 5
    assert (catalog.CHECKPOINT_SAVE_DURATION in timed.values) == (seconds is None)


def test_a_training_result_is_a_record() -> None:
    """A record that is made without checks is the one that is made with them."""
    values = {catalog.ITERATION: 5, catalog.LOSS: 2.5}
    made = Record(kind="train", values=values, attempt=2, phase="train", stamp_s=7.5, utc=True, length_s=1.25)
    quick = training_result(values, 2, 7.5, True, 1.25)
    assert (quick, repr(quick), vars(quick)) == (made, repr(made), vars(made))


def test_memory_is_bounded() -> None:
    """Sources and iterations without end are forgotten."""
    history = History()
    for step in range(1, 6000):
        history.take(train(step), f"node{step}:", "")
    assert len(history._process._sources) <= 4096
    assert len(history._process._reported) <= 256


def first_and_rest(first_ms: float, number: int, printed_ms: float, **more: Any) -> Record:
    """The second line of a process that printed its first iteration on its own."""
    lines = []
    for iteration, step_ms, stamp in ((1, first_ms, "00:00:20.000001"), (number, printed_ms, "00:01:00.000001")):
        values = {catalog.STEP_DURATION: step_ms, catalog.SKIPPED_ITERS: 0, catalog.THROUGHPUT_TFLOPS: 30.0}
        lines.append(Reading(kind="train", iteration=iteration, values=values, stamp=f"2031-01-01 {stamp}", **more))
    return told((Reading(kind="settings", settings={"world_size": 8}), ""), *((line, "") for line in lines))[-1]


@pytest.mark.parametrize(
    ("first_ms", "number", "printed_ms", "expected_ms"),
    [(20_000.0, 2, 10_750.0, 1500.0), (30_120.0, 10, 4500.2, 1653.5556), (20_000.0, 2, 9000.0, 9000.0)],
)
def test_time_of_the_first_iteration_counts_once(
    first_ms: float, number: int, printed_ms: float, expected_ms: float
) -> None:
    """A mean that includes the first iteration, reported before, is freed of it; one that cannot include it stays."""
    record = first_and_rest(first_ms, number, printed_ms)
    assert record.values[catalog.STEP_DURATION] == pytest.approx(expected_ms, abs=1e-3)
    assert record.length_s == pytest.approx((number - 1) * expected_ms / 1000, abs=1e-3)


def test_rates_of_the_first_iteration_count_once() -> None:
    """Throughput that was computed from that mean is that of the iterations behind the first, too."""
    record = first_and_rest(20_000.0, 2, 10_750.0, per_gpu={catalog.TOKENS_PER_SEC: 12.0})
    assert record.values[catalog.TOKENS_PER_SEC] == pytest.approx(12.0 * 8 * 10_750 / 1500)
    assert record.values[catalog.THROUGHPUT_TFLOPS] == pytest.approx(215.0)


@pytest.mark.parametrize(("log_interval", "expected_ms"), [(None, 4500.0), (10, 2777.7778)])
def test_excerpts_of_old_logs(log_interval: int | None, expected_ms: float) -> None:
    """Without microseconds a first line is repeated only if it is out of the interval that was asked for."""
    settings = {} if log_interval is None else {"log_interval": log_interval}
    one, ten = (
        Reading(kind="train", iteration=number, values={catalog.STEP_DURATION: step_ms, catalog.SKIPPED_ITERS: 0})
        for number, step_ms in ((1, 20_000.0), (10, 4500.0))
    )
    record = told((Reading(kind="settings", settings=settings), ""), (one, ""), (ten, ""))[-1]
    assert record.values[catalog.STEP_DURATION] == pytest.approx(expected_ms)


def test_layouts_that_repeat_nothing() -> None:
    """Layouts that count no skips print the time of each iteration, also of one behind the first."""
    lines = [(train(1, step_ms=20_000.0), ""), (train(10, step_ms=4500.0), "")]
    assert told(*lines)[-1].values[catalog.STEP_DURATION] == 4500.0


@pytest.mark.parametrize("skipped", [math.nan, math.inf])
def test_skips_that_are_no_number(skipped: float) -> None:
    """A count that is no number is absent, in a first line and in one that another repeats."""
    lines = [Reading(kind="train", iteration=step, values={catalog.SKIPPED_ITERS: skipped}) for step in (1, 2)]
    assert [catalog.SKIPPED_ITERS in one.values for one in told(*((line, "") for line in lines))] == [False, False]
