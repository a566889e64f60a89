"""Replay: a log as a live run, in its own rhythm; errors in one line; an end that is clean."""

from __future__ import annotations

import io
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog, replay
from emitter.readers import reader
from emitter.records import Record

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "demo.log"

LOG = """\
using world size: 16, data-parallel size: 16
  global_batch_size ............................... 8
  seq_length ...................................... 1000
[after dataloaders are built] datetime: 2031-01-02 03:00:00.000000
 [2031-01-02 03:00:30.000000] iteration        5/      50 | consumed samples:           40 | \
elapsed time per iteration (ms): 4000.0 | learning rate: 1.000000E-04 | global batch size:     8 | \
lm loss: 4.500000E+00 | loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   1 | \
number of nan iterations:   0 |
 validation loss at iteration 5 | lm loss value: 4.750000E+00 | lm loss PPL: 1.155843E+02 |
 [2031-01-02 03:00:50.000000] iteration       10/      50 | consumed samples:           80 | \
elapsed time per iteration (ms): 4000.0 | learning rate: 1.000000E-04 | global batch size:     8 | \
loss scale: 1.0 | grad norm: inf | number of skipped iterations:   0 | number of nan iterations:   0 |
"""
END = "[exiting program at iteration 10] datetime: 2031-01-02 03:01:00.000000\n"


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

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
        (0.0, "run"),
        (0.0, "start"),
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
        clock=time.clock,
        sleep=time.sleep,
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

    replay.replay(replay.timeline(records(LOG + END)), [sink], speed=1.0, clock=time.clock, sleep=time.sleep)
    assert seen[-1] == 60.0


def test_at_once() -> None:
    """At infinite speed nobody sleeps."""
    time, seen = Time(), []
    timed = replay.timeline(records(LOG + END))
    replay.replay(timed, [seen.append], speed=math.inf, clock=time.clock, sleep=time.sleep)
    assert seen
    assert time.sleeps == []


def test_progress_is_told_while_waiting() -> None:
    """Whoever shows progress hears of the time in the log and the last result."""
    time, told = Time(), []
    replay.replay(
        replay.timeline(records(LOG)),
        [],
        speed=1.0,
        clock=time.clock,
        sleep=time.sleep,
        progress=lambda seconds, record: told.append((seconds, record and record.values[catalog.ITERATION])),
    )
    assert told[0] == (0.0, None)
    assert (30.0, 5) in told
    assert (48.0, 5) in told
    assert told[-1] == (50.0, 10)


def exported(text: str) -> dict[str, Any]:
    """Values of gauges and counters by short name after a replay at once; those of attributes as a dictionary."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    sink = replay.metrics(meter, 12345.0)
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
    }


def test_every_phase_is_exported_and_one_is_on() -> None:
    """Each phase has a series, and exactly one is 1, at the start as at the end."""
    ended = exported(LOG + END)["run_phase"]
    assert set(ended) == set(catalog.PHASES)
    assert [phase for phase, on in ended.items() if on] == ["ended"]


def test_start_up_is_exported_before_the_first_record() -> None:
    """A run announces itself before its log says anything."""
    reader = InMemoryMetricReader()
    replay.metrics(MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test"), 1.0)
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


def outcome(*arguments: str, text: bytes | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    command = [sys.executable, "-m", "emitter", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, timeout=30, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_command_line_jsonl(tmp_path: Path) -> None:
    """Alone, jsonl is written at once; the lines of the log are accounted for on stderr."""
    path = tmp_path / "r7.log"
    path.write_text(LOG + "garbage\n" + LOG.splitlines()[-1][:120])
    code, out, err = outcome("replay", str(path), "--to", "jsonl")
    assert (code, len(out.splitlines())) == (0, 4)
    assert err == "replay: 9 lines read: 3 with results, 4 recognized, 2 skipped.\n"


def test_standard_input() -> None:
    """A dash reads standard input."""
    code, out, _ = outcome("replay", "-", "--to", "jsonl", text=LOG.encode())
    assert (code, len(out.splitlines())) == (0, 4)


def test_only_working_verbs_are_listed() -> None:
    """The help names replay, and no verb that does not work."""
    code, out, _ = outcome("--help")
    assert code == 0
    assert re.findall(r"^    (\w+)  ", out, re.MULTILINE) == ["replay"]
    for arguments in ([], ["follow", "x"], ["replay"]):
        code, out, err = outcome(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a log must be readable (got No such file or directory). Check the path."),
        (b"", "a log has lines (got an empty file). Is the run's output somewhere else?"),
        (b"\x7fELF\x02\x01\x01\x00\x00" * 99, "a log is text (got binary data). Decompress or convert it."),
        (b"\x1f\x8b\x08\xfe\xff" * 99, "a log is text (got binary data). Decompress or convert it."),
        (b"hello\nworld\n", "a log has training lines of a known layout (got 2 lines without one). Other layouts"),
    ],
)
def test_useless_file_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A file that cannot be replayed is one line on stderr, exit 1, and nothing on stdout or on a port."""
    path = tmp_path / "x.log"
    if content is not None:
        path.write_bytes(content)
    for to in ("jsonl", "scrape:0"):
        code, out, err = outcome("replay", str(path), "--to", to)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert err.startswith(f"{path}: {message}")


def test_directory_is_one_line(tmp_path: Path) -> None:
    """So is a directory."""
    code, out, err = outcome("replay", str(tmp_path))
    assert (code, out, err) == (1, "", f"{tmp_path}: a log is a file (got a directory). Name a file in it.\n")


def test_occupied_port_is_one_line() -> None:
    """So is a port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, out, err = outcome("replay", str(DEMO), "--to", f"scrape:{port}", "--to", "jsonl")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"scrape:127.0.0.1:{port}: the port must be free to listen on (got ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--to", "nowhere"),
        ("--to", "scrape:http"),
        ("--speed", "0"),
        ("--speed", "nan"),
        ("--speed", "fast"),
        ("--linger", "-1"),
        ("--run-id", " "),
        ("--fast",),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...]) -> None:
    """What cannot be asked for is one line on stderr, and exit 2."""
    code, out, err = outcome("replay", str(DEMO), *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "Traceback" not in err


class Live:
    """A replay in a process of its own, that serves."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emitter", "replay", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.first = self.process.stderr.readline()

    def scrape(self) -> str:
        """Text of a scrape."""
        url = re.search(r"http://\S+/metrics", self.first)
        assert url is not None, self.first
        with urllib.request.urlopen(url.group(), timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def wait_for(self, needle: str) -> str:
        """Text of the first scrape with the needle."""
        deadline = time.monotonic() + 10
        while needle not in (text := self.scrape()):
            assert time.monotonic() < deadline, text
            time.sleep(0.05)
        return text

    def stop(self, number: int) -> tuple[int, str]:
        """Exit code and what was said on stderr after a signal."""
        begun = time.monotonic()
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=10)
        assert time.monotonic() - begun < 5
        return self.process.returncode, err

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_scrape(tmp_path: Path, number: int) -> None:
    """The last values stay after the end of the log, with the end marked, until a signal stops it cleanly."""
    path = tmp_path / "r7.log"
    path.write_text(LOG + END)
    with Live(str(path), "--to", "scrape:0", "--speed", "200") as live:
        text = live.wait_for('phase="ended"} 1.0')
        assert 'megatron_training_iteration{nemo_run_id="r7"' in text
        assert text.count("\nmegatron_training_iteration{") == 1
        code, err = live.stop(number)
    assert code == 0
    assert err.splitlines() == [
        "replay: 8 lines read: 3 with results, 5 recognized, 0 skipped.",
        "replay: the log is over; its last values stay for 60 s, or until Ctrl-C.",
        "replay: stopped.",
    ]


@pytest.mark.live
def test_signal_during_the_log() -> None:
    """A signal in the middle stops at once, cleanly."""
    with Live(str(DEMO), "--to", "scrape:0", "--run-id", "a`b") as live:
        code, err = live.stop(signal.SIGTERM)
    assert code == 0
    assert err.splitlines()[-1] == "replay: stopped."
    assert "Traceback" not in err


@pytest.mark.live
def test_linger_ends() -> None:
    """A linger has an end, and its end is success."""
    code, _, err = outcome("replay", str(DEMO), "--to", "scrape:0", "--speed", "100000", "--linger", "0.1")
    assert code == 0
    assert err.endswith("its last values stay for 0.1 s, or until Ctrl-C.\n")


@pytest.mark.live
def test_collector_that_never_answers_is_a_failure() -> None:
    """A replay whose values reached nobody does not pretend to have worked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code, out, err = outcome("replay", str(DEMO), "--to", f"otlp:http://127.0.0.1:{port}", "--speed", "1e9")
    assert (code, out) == (1, "")
    assert "replay: the last values must arrive" in err
    assert "Traceback" not in err


@pytest.mark.live
@pytest.mark.parametrize("to", ["jsonl", "console"])
def test_broken_pipe(to: str, tmp_path: Path) -> None:
    """Whoever reads only the first lines leaves no traceback behind."""
    path = tmp_path / "long.log"
    train = LOG.splitlines()[4]
    path.write_text("\n".join(train.replace("       5/", f"{number:8d}/") for number in range(1, 2000)))
    with subprocess.Popen(
        [sys.executable, "-m", "emitter", "replay", str(path), "--to", to, "--speed", "1e9"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(20) in (0, 1)
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.live
def test_progress_on_a_terminal() -> None:
    """On a terminal a line now and then tells where the replay is."""
    pty = pytest.importorskip("pty")
    terminal, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "emitter", "replay", str(DEMO), "--to", "scrape:0", "--speed", "20"],
        cwd=ROOT,
        stderr=inner,
    ) as process:
        os.close(inner)
        shown = b""
        deadline = time.monotonic() + 10
        while b"into the log" not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 1000)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    os.close(terminal)
    assert re.search(rb"replay: no iteration yet, 0:00:\d\d into the log\.", shown)
