"""Replay: a log as a live run, in its own rhythm."""

from __future__ import annotations

import io
import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from log_commands import END, LOG
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog, replay
from emitter.__main__ import main
from emitter.log_options import CHUNK
from emitter.readers import reader
from emitter.records import Record


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self.log = replay.LogTime(5000.0)

    @property
    def given(self) -> dict[str, Any]:
        """What a replay takes of it."""
        return {"clock": self.clock, "sleep": self.sleep, "log_time": self.log}

    def clock(self) -> float:
        """Present time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.sleeps.append(seconds)
        self.now += seconds


def records(text: str) -> Iterator[Record]:
    return replay.records("x.log", io.BytesIO(text.encode()), reader())


def unstamped(text: str) -> str:
    return re.sub(r" ?\[[^\]]*\] (?=iteration)|\[.*\] datetime: .*\n", "", text)


def test_timeline_follows_the_logs_clock() -> None:
    """Start-up and intervals take as long as they took."""
    assert [(seconds, record.kind) for seconds, record in replay.timeline(records(LOG + END))] == [
        (0.0, "start"),
        (0.0, "run"),
        (0.0, "run"),
        (0.0, "phase"),
        (30.0, "train"),
        (30.0, "validation"),
        (50.0, "train"),
        (60.0, "end"),
    ]


def test_timeline_without_a_clock() -> None:
    """Without stamps the intervals make the time, from the first result on."""
    found = [seconds for seconds, record in replay.timeline(records(unstamped(LOG))) if record.kind == "train"]
    assert found == [0.0, 20.0]


def test_timeline_never_goes_back() -> None:
    """A clock that goes back, as at the end of summer time, stops nothing and hurries nothing."""
    text = LOG + LOG.replace("03:00", "02:00").replace("       5/", "      15/").replace("      10/", "      20/")
    found = [seconds for seconds, record in replay.timeline(records(text)) if record.kind == "train"]
    assert found == [30.0, 50.0, 80.0, 100.0]


@pytest.mark.parametrize("speed", [1.0, 4.0, 1e6])
def test_pace(speed: float) -> None:
    """N times as fast takes an N-th of the time, slept in slices."""
    time, seen = Time(), []
    replay.replay(
        replay.timeline(records(LOG + END)),
        [lambda record: seen.append((time.now - 1000.0, record.kind))],
        speed=speed,
        **time.given,
    )
    assert [(pytest.approx(at * speed), kind) for at, kind in seen[-4:]] == [
        (30.0, "train"),
        (30.0, "validation"),
        (50.0, "train"),
        (60.0, "end"),
    ]
    assert max(time.sleeps) <= replay.SLICE_S


def test_pace_catches_up() -> None:
    """A late record does not delay those after it."""
    time, seen = Time(), []

    def sink(record: Record) -> None:
        seen.append(time.now - 1000.0)
        time.now += 5.0 if len(seen) == 1 else 0.0

    replay.replay(
        replay.timeline(records(LOG + END)),
        [sink],
        speed=1.0,
        **time.given,
    )
    assert seen[-1] == 60.0


def test_at_once() -> None:
    """At infinite speed nobody sleeps."""
    time, seen = Time(), []
    timed = replay.timeline(records(LOG + END))
    replay.replay(
        timed, [seen.append], speed=math.inf, clock=time.clock, sleep=time.sleep, log_time=replay.LogTime(0.0)
    )
    assert seen
    assert time.sleeps == []


def test_progress_is_told_while_waiting() -> None:
    """Whoever shows progress hears of the time in the log and the last result."""
    time, told = Time(), []
    replay.replay(
        replay.timeline(records(LOG)),
        [],
        speed=1.0,
        **time.given,
        progress=lambda seconds, record: told.append((seconds, record and record.values[catalog.ITERATION])),
    )
    assert told[0] == (0.0, None)
    assert (30.0, 5) in told
    assert (48.0, 5) in told
    assert told[-1] == (50.0, 10)


def test_the_logs_time_runs_with_the_replay() -> None:
    """Whoever reads the log's clock finds the time of the present record, and between two records what has passed."""
    time, at_records, between = Time(), [], []
    replay.replay(
        replay.timeline(records(LOG + END)),
        [lambda record: at_records.append(time.log())],
        speed=5.0,
        progress=lambda seconds, record: between.append(time.log()),
        **time.given,
    )
    assert at_records == [5000.0] * 4 + [5030.0, 5030.0, 5050.0, 5060.0]
    assert between[:4] == [5000.0, 5010.0, 5020.0, 5030.0]


def exported(text: str) -> dict[str, Any]:
    """Values of gauges and counters by short name after a replay at once; those of attributes as a dictionary."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    sink = replay.metrics(meter, lambda: 12345.0)
    for record in records(text):
        sink(record)
    found: dict[str, Any] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        short = catalog.get(metric.name).short
        for point in metric.data.data_points:
            value = getattr(point, "value", None) if hasattr(point, "value") else (point.count, point.sum)
            if point.attributes:
                found.setdefault(short, {})[next(iter(point.attributes.values()))] = value
            else:
                found[short] = value
    return found


def test_metrics() -> None:
    """A replayed run exports what a live one does: settings, results, phase, start, attempt."""
    assert exported(LOG) == {
        "run_world_size": 16,
        "run_start_time": 12345.0,
        "run_attempt": 0,
        "run_phase": {"startup": 0, "train": 1, "evaluate": 0, "checkpoint": 0, "ended": 0},
        "iteration": 10,
        "target_iteration": 50,
        "global_batch_size": 8,
        "consumed_samples": 80,
        "consumed_tokens": 80_000,
        "step_duration_ms": (2, 8000.0),
        "tokens_per_sec": 2000.0,
        "learning_rate": 1e-4,
        "validation_loss": 4.75,
        "loss_scale": 1.0,
        "skipped_iters": 1,
        "nonfinite": {"loss": 1, "grad_norm": 1},
        "checkpoint_failures": 0,
        "run_time": dict.fromkeys(catalog.RUN_TIME_BUCKETS, 0),
    }


def test_every_phase_is_exported_and_one_is_on() -> None:
    """Each phase has a series, and exactly one is 1, at the start as at the end."""
    ended = exported(LOG + END)["run_phase"]
    assert set(ended) == set(catalog.PHASES)
    assert [phase for phase, on in ended.items() if on] == ["ended"]


def test_start_up_is_exported_before_the_first_record() -> None:
    """A run announces itself before its log says anything."""
    reader = InMemoryMetricReader()
    replay.metrics(MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test"), lambda: 1.0)
    assert '"phase": "startup"' in reader.get_metrics_data().to_json()  # type: ignore[union-attr]


def test_jsonl() -> None:
    """One object for each result, with short names; NaN and infinity are words, integers stay integers."""
    out = io.StringIO()
    sink = replay.jsonl(out)
    for record in records(LOG):
        sink(record)
    start, first, validation, second = (json.loads(text) for text in out.getvalue().splitlines())
    assert start == {"kind": "start", "run_attempt": 0}
    assert first == {
        "kind": "train",
        "run_attempt": 0,
        "iteration": 5,
        "target_iteration": 50,
        "consumed_samples": 40,
        "consumed_tokens": 40_000,
        "step_duration_ms": 4000.0,
        "learning_rate": 1e-4,
        "global_batch_size": 8,
        "loss": 4.5,
        "loss_scale": 1.0,
        "grad_norm": 1.25,
        "skipped_iters": 1,
        "tokens_per_sec": 2000.0,
    }
    assert validation == {"kind": "validation", "run_attempt": 0, "iteration": 5, "validation_loss": 4.75}
    assert (second["loss"], second["grad_norm"]) == ("NaN", "+Inf")
    assert '"iteration": 5,' in out.getvalue()


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file with a hole as large as a hundred chunks no more than a few are in memory."""
    log = tmp_path / "r7.log"
    log.write_text(LOG)
    with log.open("ab") as file:
        file.truncate(100 * CHUNK)
    tracemalloc.start()
    try:
        assert main(["replay", str(log), "--to", "jsonl"]) == 0
        assert tracemalloc.get_traced_memory()[1] < 10 * CHUNK
    finally:
        tracemalloc.stop()
    assert capsys.readouterr().out.count('"kind": "train"') == 2
