"""The life of a run: phases, steps, checkpoints and evaluations, and every second booked once."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog
from emitter.catalog import Metric
from emitter.lifecycle import STALL_FLOOR_S, STALL_STEPS, Lifecycle

START_S = 1_900_000_000.0


class Stage:
    """A life cycle with a clock that is set by hand, and what a reader collects of it."""

    def __init__(self, **options: Any) -> None:
        self.now = START_S
        self.reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self.reader], shutdown_on_exit=False)
        self.life = Lifecycle(self._provider.get_meter("test"), lambda: self.now, **options)

    def after(self, seconds: float) -> Lifecycle:
        """The life cycle so much later."""
        self.now += seconds
        return self.life

    def collected(self, metric: Metric) -> list[Any]:
        """The points of a metric."""
        data = self.reader.get_metrics_data()
        every = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [point for m in every if m.name == metric.name for point in m.data.data_points]

    def values(self, metric: Metric, attribute: str = "") -> dict[str, float]:
        """Values of a metric by an attribute, those that are 0 left out."""
        points = {str(point.attributes.get(attribute, "")): point.value for point in self.collected(metric)}
        return {name: value for name, value in points.items() if value}

    def durations(self, metric: Metric) -> tuple[int, float]:
        """Number and sum of what a histogram saw."""
        points = self.collected(metric)
        return (points[0].count, points[0].sum) if points else (0, 0.0)

    @property
    def time(self) -> dict[str, float]:
        """Seconds by bucket."""
        return self.values(catalog.RUN_TIME, "bucket")

    @property
    def phase(self) -> dict[str, float]:
        """The phases that are 1."""
        return self.values(catalog.RUN_PHASE, "phase")


@pytest.fixture
def stage() -> Iterator[Stage]:
    one = Stage()
    yield one
    one.reader.shutdown()


def test_a_run_starts_in_startup_with_every_counter_at_zero(stage: Stage) -> None:
    """Before the first event: the phase, the start, the attempt, and zeros that a rate can start from."""
    assert stage.phase == {"startup": 1}
    assert stage.values(catalog.RUN_START_TIME) == {"": START_S}
    assert [point.value for point in stage.collected(catalog.RUN_ATTEMPT)] == [0]
    assert [point.value for point in stage.collected(catalog.CHECKPOINT_FAILURES)] == [0]
    assert {point.attributes["bucket"] for point in stage.collected(catalog.RUN_TIME)} == set(catalog.RUN_TIME_BUCKETS)


def test_the_first_step_ends_the_start_up(stage: Stage) -> None:
    """Nobody knows when the first step began: its time is start-up, and it has no length."""
    assert stage.after(40).step() is None
    assert stage.phase == {"train": 1}
    assert stage.after(2).step() == 2
    assert stage.durations(catalog.STEP_DURATION) == (1, 2000)
    assert stage.time == {"startup": 40, "productive": 2}


def test_a_given_length_counts_from_the_first_step_on(stage: Stage) -> None:
    """Who measures a step is believed."""
    assert stage.after(40).step(seconds=1.5) == 1.5
    assert stage.durations(catalog.STEP_DURATION) == (1, 1500)


def test_steps_reported_together_share_their_time(stage: Stage) -> None:
    """Ten steps in twenty seconds are one observation of two."""
    stage.after(5).step()
    assert stage.after(20).step(10) == 2
    assert stage.durations(catalog.STEP_DURATION) == (1, 2000)


def test_an_evaluation_is_no_part_of_a_step(stage: Stage) -> None:
    """A step that an evaluation interrupts is as long as its own two parts."""
    stage.after(5).step()
    stage.now += 1
    with stage.life.during("evaluate") as seconds:
        stage.now += 600
        assert stage.phase == {"evaluate": 1}
        stage.life.evaluated(seconds(), 2.5)
    assert stage.phase == {"train": 1}
    assert stage.after(2).step() == 3
    assert stage.time == {"startup": 5, "evaluate": 600, "productive": 3}
    assert stage.durations(catalog.EVALUATION_DURATION) == (1, 600)
    assert stage.values(catalog.VALIDATION_LOSS) == {"": 2.5}


def test_a_checkpoint_says_what_is_safe(stage: Stage) -> None:
    """A complete checkpoint has a time, an iteration and a length; a failed one is counted."""
    stage.after(5).step()
    with stage.life.during("checkpoint") as seconds:
        stage.now += 30
        stage.life.checkpoint_saved(700, seconds())
    stage.life.checkpoint_failed()
    assert stage.values(catalog.CHECKPOINT_LAST_SUCCESS_TIME) == {"": START_S + 35}
    assert stage.values(catalog.CHECKPOINT_LAST_ITERATION) == {"": 700}
    assert stage.durations(catalog.CHECKPOINT_SAVE_DURATION) == (1, 30)
    assert stage.values(catalog.CHECKPOINT_FAILURES) == {"": 1}


def test_a_checkpoint_load_has_a_length(stage: Stage) -> None:
    """Reading a checkpoint is part of the start-up, and measured."""
    with stage.life.during("startup") as seconds:
        stage.now += 12
        stage.life.checkpoint_loaded(seconds())
    assert stage.durations(catalog.CHECKPOINT_LOAD_DURATION) == (1, 12)
    assert stage.time == {"startup": 12}


def test_a_later_attempt_books_its_start_as_restart() -> None:
    """What a restart costs is not what a start costs."""
    stage = Stage(attempt=2)
    stage.after(90).step()
    assert stage.time == {"restart": 90}
    assert stage.values(catalog.RUN_ATTEMPT) == {"": 2}
    stage.reader.shutdown()


def test_a_hang_is_booked_while_it_lasts(stage: Stage) -> None:
    """What is beyond some usual steps is stalled time, already before the step is done."""
    stage.life.step()
    for _ in range(5):
        stage.after(30).step()
    stage.now += 400
    assert stage.time == {"productive": 150 + STALL_STEPS * 30, "stalled": 400 - STALL_STEPS * 30}
    stage.after(100).step()
    assert stage.time == {"productive": 150 + STALL_STEPS * 30, "stalled": 500 - STALL_STEPS * 30}


def test_a_short_pause_of_a_fast_run_is_no_stall(stage: Stage) -> None:
    """Below a minute nothing is stalled, however fast the run is."""
    stage.life.step()
    for _ in range(5):
        stage.after(0.5).step()
    stage.after(STALL_FLOOR_S).step()
    assert stage.time == {"productive": 2.5 + STALL_FLOOR_S}


def test_a_long_checkpoint_is_booked_while_it_lasts(stage: Stage) -> None:
    """Every collection sees the time until now, once."""
    stage.after(5).step()
    stage.life.enter("checkpoint")
    stage.now += 100
    assert stage.time == {"startup": 5, "checkpoint": 100}
    assert stage.time == {"startup": 5, "checkpoint": 100}


def test_nothing_comes_after_the_end(stage: Stage) -> None:
    """An ended run stays ended, and no time passes in it."""
    stage.after(5).step()
    with stage.life.during("evaluate"):
        stage.after(5).end()
    stage.after(100).step()
    assert stage.phase == {"ended": 1}
    assert stage.time == {"startup": 5, "evaluate": 5}


def test_a_clock_that_goes_back_costs_nothing(stage: Stage) -> None:
    """A counter never falls, and the time until the clock has caught up is booked once."""
    stage.after(5).step()
    stage.after(-60).step()
    stage.after(61).step()
    assert stage.time == {"startup": 5, "productive": 1}


def test_a_reader_waits_for_no_loop(stage: Stage) -> None:
    """A loop that was interrupted while it booked, by SIGTERM, does not keep the last values from leaving."""
    stage.after(5).step()
    stage.now += 10
    collected: list[dict[str, float]] = []
    with stage.life._lock:
        reading = Thread(target=lambda: collected.append(stage.time))
        reading.start()
        reading.join(10)
    assert collected == [{"startup": 5}]
    assert stage.time == {"startup": 5, "productive": 10}


def test_a_phase_that_others_left_is_not_gone_back_to(stage: Stage) -> None:
    """A checkpoint in a thread that began in the start-up does not end the training that began meanwhile."""
    with stage.life.during("checkpoint"):
        stage.after(5).step()
    assert stage.phase == {"train": 1}


def test_an_unknown_phase_is_refused(stage: Stage) -> None:
    """A misspelt phase is an error, as in the catalog."""
    with pytest.raises(ValueError, match=r"a phase is one of startup, .*got 'training'"):
        stage.life.enter("training")


def test_without_a_meter_everything_is_silent() -> None:
    """On a rank that does not export, the same calls do nothing."""
    life = Lifecycle(None, lambda: START_S)
    life.step()
    with life.during("checkpoint") as seconds:
        life.checkpoint_saved(1, seconds())
    life.end()
    assert life.phase == "ended"


@given(
    st.lists(
        st.tuples(st.floats(0, 1000), st.sampled_from(["step", "train", "evaluate", "checkpoint", "startup", "look"])),
        max_size=30,
    )
)
def test_every_second_is_booked_once(events: list[tuple[float, str]]) -> None:
    """Whatever happens, the buckets add up to the time since the start."""
    stage = Stage()
    for seconds, what in events:
        stage.now += seconds
        if what == "step":
            stage.life.step()
        elif what == "look":
            stage.life.book()
        else:
            stage.life.enter(what)
    assert sum(stage.time.values()) == pytest.approx(stage.now - START_S, abs=1e-3)
    stage.reader.shutdown()
