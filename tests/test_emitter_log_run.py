"""A run as its log tells it: phases, attempts, steps and what a past leaves of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from log_commands import training_line
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog
from emitter.catalog import Metric
from emitter.lifecycle import STALL_STEPS
from emitter.log_run import LoggedRun, Past
from emitter.readers import reader
from emitter.records import Record

START_S = 1_900_000_000.0

BEGIN = "using world size: 16, data-parallel size: 16\n[after dataloaders are built] datetime: 2031-01-02 03:00:00\n"
SAVED = (
    "[2031-01-02 03:00:04] saving checkpoint at iteration       3 to there\n"
    "[2031-01-02 03:00:09] successfully saved checkpoint at iteration       3 to there\n"
)
TIMERS = """(min, max) time across ranks (ms):
    forward-compute ................................: (100.00, 200.00)
    all-grads-sync .................................: (50.00, 60.00)
"""


class Stage:
    """A run with a clock that is set by hand, and what a reader collects of it."""

    def __init__(self, **options: Any) -> None:
        self.now = START_S
        self.reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.run = LoggedRun(self._provider.get_meter("test"), lambda: self.now, **options)

    def tell(self, text: str, seconds: float = 0.0) -> None:
        """Let a log be read, of which each line comes so many seconds after the one before."""
        for record in records(text):
            self.now += seconds
            self.run(record)

    def points(self, metric: Metric) -> dict[str, Any]:
        """Points of a metric by their attributes' values; of a histogram how many values there were, and their sum."""
        data = self.reader.get_metrics_data()
        every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return {
            " ".join(str(value) for _, value in sorted((point.attributes or {}).items())): getattr(point, "value", None)
            if hasattr(point, "value")
            else (point.count, point.sum)
            for one in every
            if one.name == metric.name
            for point in one.data.data_points
        }

    def value(self, metric: Metric) -> Any:
        """The value of a metric without attributes."""
        return self.points(metric)[""]

    @property
    def phase(self) -> str:
        """The phase that is 1."""
        (phase,) = (phase for phase, on in self.points(catalog.RUN_PHASE).items() if on)
        return phase

    @property
    def time(self) -> dict[str, float]:
        """Seconds by purpose."""
        return {bucket: value for bucket, value in self.points(catalog.RUN_TIME).items() if value}


def records(text: str) -> list[Record]:
    log = reader()
    return [*log.feed(text.encode()), *log.close()]


def past(text: str) -> Past:
    """What a log says until somebody follows it."""
    before = Past()
    for record in records(text):
        before.take(record)
    return before


@pytest.fixture
def stage() -> Iterator[Stage]:
    one = Stage()
    yield one
    one.reader.shutdown()


def test_results_and_steps(stage: Stage) -> None:
    """A training line is a step of the length that it prints, and its values are the run's."""
    stage.tell(BEGIN + training_line(1, 4.5) + training_line(2, 4.25, skipped=1))
    assert stage.phase == "train"
    assert stage.value(catalog.LOSS) == 4.25
    assert stage.value(catalog.ITERATION) == 2
    assert stage.value(catalog.SKIPPED_ITERS) == 1
    assert stage.value(catalog.WORLD_SIZE) == 16
    assert stage.value(catalog.STEP_DURATION) == (2, 2000.0)


def test_steps_of_a_line(stage: Stage) -> None:
    """A line stands for all of its iterations: what a run usually takes until the next line is no stall."""
    stage.tell(training_line(30) + training_line(60) + training_line(90), seconds=30)
    stage.now += 100
    assert stage.time == {"startup": 30, "productive": 60 + STALL_STEPS * 30, "stalled": 100 - STALL_STEPS * 30}


def test_time_is_booked_by_phase(stage: Stage) -> None:
    """Start-up, training and checkpoints are told apart by the clock."""
    stage.now += 30
    stage.tell(training_line(1))
    stage.now += 5
    stage.tell("Evaluating on 8 samples\n")
    stage.now += 7
    stage.tell(" validation loss at iteration 1 | lm loss value: 4.750000E+00 | lm loss PPL: 1.155843E+02 |\n")
    assert stage.time == {"startup": 30, "productive": 5, "evaluate": 7}
    assert stage.value(catalog.VALIDATION_LOSS) == 4.75


def test_checkpoint(stage: Stage) -> None:
    """A checkpoint that is complete has a time, an iteration and a length."""
    stage.tell(training_line(3) + SAVED, seconds=5)
    assert stage.phase == "train"
    assert stage.value(catalog.CHECKPOINT_LAST_ITERATION) == 3
    assert stage.value(catalog.CHECKPOINT_LAST_SUCCESS_TIME) == START_S + 15
    assert stage.value(catalog.CHECKPOINT_SAVE_DURATION) == (1, 5.0)


def test_timers_keep_phase_and_rank(stage: Stage) -> None:
    """Timers are told as the twenty phases, whichever name a release gives them."""
    stage.tell(training_line(1) + TIMERS)
    assert stage.points(catalog.TIMER_DURATION) == {
        "min forward-compute": 0.1,
        "max forward-compute": 0.2,
        "min grads-reduce-scatter": 0.05,
        "max grads-reduce-scatter": 0.06,
    }


def test_another_process_is_another_attempt(stage: Stage) -> None:
    """Its start-up is booked as restart, and its start is now."""
    stage.tell(BEGIN + training_line(1))
    log = BEGIN + training_line(1) + BEGIN
    stage.now += 10
    for record in records(log)[3:]:
        stage.run(record)
    assert stage.value(catalog.RUN_ATTEMPT) == 1
    assert stage.value(catalog.RUN_START_TIME) == START_S + 10
    assert stage.phase == "startup"
    stage.now += 20
    assert stage.time == {"productive": 10, "restart": 20}


def test_an_end_and_a_new_beginning(stage: Stage) -> None:
    """A run that has ended is not booked; when its log goes on, so does the run."""
    end = "[exiting program at iteration 1] datetime: 2031-01-02 03:00:02\n"
    said = records(training_line(1) + end + BEGIN + training_line(1, 4.0))
    for record in said[:2]:
        stage.run(record)
    assert stage.phase == "ended"
    stage.now += 100
    for record in said[2:]:
        stage.run(record)
    assert stage.phase == "train"
    assert stage.value(catalog.RUN_ATTEMPT) == 1
    assert stage.time == {}


def test_a_past_gives_gauges_and_no_counts() -> None:
    """Who comes later shows the present: phase, attempt, last values; what was counted before is over."""
    stage = Stage(past=past(BEGIN + training_line(1, 4.5, skipped=1) + BEGIN + training_line(2, 4.0) + TIMERS))
    assert stage.phase == "train"
    assert stage.value(catalog.RUN_ATTEMPT) == 1
    assert stage.value(catalog.LOSS) == 4.0
    assert stage.value(catalog.SKIPPED_ITERS) == 0
    assert stage.points(catalog.STEP_DURATION) == {}
    assert stage.points(catalog.TIMER_DURATION)["max forward-compute"] == 0.2
    stage.now += 3
    assert stage.time == {"productive": 3}
    stage.tell(training_line(3, skipped=1).replace("[2031", "[2032"))
    assert stage.value(catalog.SKIPPED_ITERS) == 1
    stage.reader.shutdown()


def test_a_past_tells_how_old_things_are() -> None:
    """Start and last checkpoint are as old as the log's own clock says, which names no zone."""
    stage = Stage(past=past(BEGIN + training_line(3) + SAVED + training_line(19)))
    assert stage.value(catalog.RUN_START_TIME) == START_S - 19
    assert stage.value(catalog.CHECKPOINT_LAST_SUCCESS_TIME) == START_S - 10
    stage.reader.shutdown()


def test_a_past_that_ended_in_nan() -> None:
    """A loss that is NaN at present has no value, and is not counted: nobody saw it come."""
    stage = Stage(past=past(training_line(1) + training_line(2).replace("lm loss: 2.500000E+00 | ", "")))
    assert stage.points(catalog.LOSS) == {}
    assert set(stage.points(catalog.NONFINITE).values()) == {0}
    stage.reader.shutdown()


def test_moments_are_those_of_whoever_watches() -> None:
    """In a replay at another speed phases are booked in the log's time, and moments are stamped with the present."""
    stage = Stage(now=lambda: START_S + 1)
    stage.tell(training_line(3) + SAVED, seconds=100)
    assert stage.value(catalog.CHECKPOINT_LAST_SUCCESS_TIME) == START_S + 1
    assert stage.time["startup"] == 100
    stage.reader.shutdown()


def test_a_moment_after_the_logs_last_word_is_none() -> None:
    """Where the clock went back meanwhile, how long ago a checkpoint was complete cannot be told."""
    before = Past()
    for kind, stamp_s in (("start", 100.0), ("checkpoint", 200.0), ("train", 150.0)):
        before.take(Record(kind=kind, stamp_s=stamp_s))
    assert before.moments(START_S) == {catalog.RUN_START_TIME: START_S - 50}
