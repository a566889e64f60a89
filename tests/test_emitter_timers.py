"""Phase times: every generation's timer names, in seconds, bounded, and never an exception."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.metrics import Meter, NoOpMeter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog, timers
from emitter.repeats import Once
from emitter.timer_table import CANONICAL, GROUPS, TIMERS
from emitter.timers import FOREIGN_LIMIT, NAME_LIMIT, record_phase_times

AIHC = {
    "TP + forward/backward": ["forward-backward", "forward-compute", "backward-compute"],
    "DP communication": [
        *("grads-reduce-scatter", "params-all-gather", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"),
    ],
    "PP communication": [
        *("forward-recv", "forward-send", "backward-recv", "backward-send"),
        *("forward-send-backward-recv", "backward-send-forward-recv"),
    ],
    "optimizer": [
        *("optimizer", "optimizer-copy-to-main-grad", "optimizer-unscale-and-check-inf", "optimizer-count-zeros"),
        *("optimizer-inner-step", "optimizer-copy-main-to-model-params"),
    ],
    "other": ["batch-generator"],
}
"""The 20 phases of the AIHC performance page, by panel group."""


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer was seen and no warning given yet."""
    monkeypatch.setattr(timers, "_foreign", set())
    monkeypatch.setattr(timers, "_once", Once(__name__))


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


@pytest.fixture
def meter(reader: InMemoryMetricReader) -> Meter:
    return MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")


def times(reader: InMemoryMetricReader) -> dict[str, tuple[Any, Any]]:
    """Exported minimum and maximum by phase."""
    data = reader.get_metrics_data()
    found: dict[str, dict[Any, Any]] = {}
    for resource in data.resource_metrics if data else ():
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            if metric.name == catalog.TIMER_DURATION.name:
                assert metric.unit == "s"
                for point in metric.data.data_points:
                    assert set(point.attributes) == {"phase", "agg"}
                    found.setdefault(point.attributes["phase"], {})[point.attributes["agg"]] = point.value
    return {phase: (pair["min"], pair["max"]) for phase, pair in found.items()}


def test_the_table_is_the_page() -> None:
    """The table has the page's 20 phases in the page's groups and order, each with a meaning."""
    assert {group: [timer.name for timer in TIMERS if timer.group == group] for group in GROUPS} == AIHC
    assert [timer.name for timer in TIMERS] == [name for names in AIHC.values() for name in names]
    assert len(TIMERS) == 20
    assert all(timer.meaning.endswith(".") for timer in TIMERS)


def test_every_name_has_one_phase() -> None:
    """No alias is another phase's name or alias."""
    names = [name for timer in TIMERS for name in (timer.name, *timer.aliases)]
    assert len(set(names)) == len(names) == len(CANONICAL)


@pytest.mark.parametrize("name", [name for names in AIHC.values() for name in names])
@pytest.mark.parametrize("ending", ["", "-time"])
def test_every_phase_arrives_in_seconds(name: str, ending: str, meter: Meter, reader: InMemoryMetricReader) -> None:
    """Each phase of the page is exported with its minimum and maximum as given, with the page's ending or without."""
    record_phase_times(meter, {name + ending: (0.25, 1.5)})
    assert times(reader) == {name: (0.25, 1.5)}


@pytest.mark.parametrize(
    ("newer", "phase"),
    [
        ("all-grads-sync", "grads-reduce-scatter"),
        ("all-grads-sync-time", "grads-reduce-scatter"),
        ("grads-all-reduce", "grads-reduce-scatter"),
        ("non-tensor-parallel-grads-all-reduce", "layernorm-grads-all-reduce"),
    ],
)
def test_renamed_timers_keep_their_phase(newer: str, phase: str, meter: Meter, reader: InMemoryMetricReader) -> None:
    """A panel finds the phase whichever release of Megatron-LM runs."""
    record_phase_times(meter, {newer: (0.1, 0.2)})
    assert times(reader) == {phase: (0.1, 0.2)}


def test_the_last_interval_counts(meter: Meter, reader: InMemoryMetricReader) -> None:
    """A phase shows its newest pair, and keeps it through an interval without."""
    record_phase_times(meter, {"optimizer": (1, 2), "batch-generator": (3, 4)})
    record_phase_times(meter, {"optimizer": (0, 0.0)})
    record_phase_times(meter, {})
    record_phase_times(meter, None)
    assert times(reader) == {"optimizer": (0, 0), "batch-generator": (3, 4)}


@pytest.mark.parametrize(
    ("given", "exported"),
    [
        ("optimizer-clip-main-grad", "optimizer-clip-main-grad"),
        ("train/valid/test-data-iterators-setup", "train/valid/test-data-iterators-setup"),
        ("rl/restore.grad_buffers", "rl/restore.grad_buffers"),
        ("interval-time", "interval-time"),
        ("My Phase (ms)", "my_phase_ms_"),
        ("schön\n`", "sch_n_"),
        ("x" * 65, "x" * 64),
    ],
)
def test_other_timers_keep_their_name(given: str, exported: str, meter: Meter, reader: InMemoryMetricReader) -> None:
    """A timer outside the table is exported under its own name, made fit for a query."""
    record_phase_times(meter, {given: (1.0, 2.0)})
    assert times(reader) == {exported: (1.0, 2.0)}
    assert len(exported) <= NAME_LIMIT


def test_other_timers_are_bounded(meter: Meter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture) -> None:
    """A name with a number in it cannot flood the metrics; known phases and timers seen before still arrive."""
    for iteration in range(FOREIGN_LIMIT + 50):
        record_phase_times(meter, {f"iteration-{iteration}": (1.0, 2.0)})
    assert set(times(reader)) == {f"iteration-{iteration}" for iteration in range(FOREIGN_LIMIT)}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "at most 64 timers outside the table (got 'iteration-64' as well)" in caplog.text
    record_phase_times(meter, {"optimizer": (1.0, 2.0), "iteration-63": (5.0, 6.0), "iteration-99": (1.0, 2.0)})
    assert len(times(reader)) == FOREIGN_LIMIT + 1
    assert times(reader)["optimizer"] == (1.0, 2.0)
    assert times(reader)["iteration-63"] == (5.0, 6.0)


class Unreadable:
    """A tensor whose device is gone."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error")


@pytest.mark.parametrize(
    "pair",
    [
        *((2.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), (1.0, math.nan), (1.0, math.inf), (-math.inf, 1.0)),
        *((1.0,), (1.0, 2.0, 3.0), (), 1.0, None, "ab", (None, 1.0), (1.0, Unreadable())),
    ],
)
def test_bad_pairs_are_left_out_with_one_line(
    pair: Any, meter: Meter, reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """What is no pair of times costs one log line and none of the other timers."""
    for _ in range(3):
        record_phase_times(meter, {"new": pair, "forward-send": pair, "optimizer": (1.0, 2.0)})
    assert times(reader) == {"optimizer": (1.0, 2.0)}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "times are 0 <= minimum <= maximum" in caplog.text


@pytest.mark.parametrize("hostile", [7, [("optimizer", (1.0, 2.0))], {3: (1.0, 2.0)}])
def test_nonsense_does_not_raise(hostile: Any, meter: Meter, caplog: pytest.LogCaptureFixture) -> None:
    """Something else than timers is one log line in the training loop."""
    record_phase_times(meter, hostile)
    record_phase_times(meter, hostile)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("off", [None, NoOpMeter("off")])
def test_off_means_off(off: Meter | None, caplog: pytest.LogCaptureFixture) -> None:
    """Without a meter nothing is looked at, so that no rank waits for a device."""
    record_phase_times(off, {"new": (Unreadable(), Unreadable())})
    record_phase_times(off, {"new": (1.0, 2.0)})
    assert timers._foreign == set()
    assert not caplog.records
