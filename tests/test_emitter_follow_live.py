"""Follow as a process beside others: killed, rotated under, idle, stopped, scraped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from log_commands import END, LOG, ROOT, Live, outcome, training_line

pytestmark = pytest.mark.live

WRITER = """
import logging.handlers, random, sys, time
sys.path.insert(0, sys.argv[4])
from log_commands import training_line
chance = random.Random(7)
handler = logging.handlers.RotatingFileHandler(sys.argv[1], maxBytes=int(sys.argv[3]), backupCount=200)
log = logging.getLogger("writer")
log.addHandler(handler)
for iteration in range(1, int(sys.argv[2]) + 1):
    log.warning(training_line(iteration)[:-1])
    log.warning("noise " * 20)
    time.sleep(chance.choice((0, 0, 0, 0.002, 0.02)))
"""

SECONDS = 30.0


def follow(*arguments: str, out: Path) -> subprocess.Popen[bytes]:
    """A follow that appends JSON lines to a file."""
    with open(out, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "emitter", "follow", *arguments, "--to", "jsonl"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.PIPE,
            stdin=subprocess.PIPE,
        )


@contextmanager
def following(*arguments: str, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The same until the end of the block, where it is told to stop."""
    with follow(*arguments, out=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)
    assert process.returncode == 0


def wait_for(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def iterations(out: Path) -> list[int]:
    """Iterations of the training lines that were told."""
    told = [json.loads(line) for line in out.read_text().splitlines()]
    return [record["iteration"] for record in told if record["kind"] == "train"]


def has_begun(state: Path) -> Callable[[], object]:
    """Whether a follow knows its past: it writes its state then."""
    return state.exists


def write(path: Path, iterations: int, size: int) -> subprocess.Popen[bytes]:
    arguments = [str(path), str(iterations), str(size), str(Path(__file__).parent)]
    return subprocess.Popen([sys.executable, "-c", WRITER, *arguments])


def test_killed_again_and_again_under_a_log_that_rotates(tmp_path: Path) -> None:
    """Each record is told, in its order, and at most one for each kill is told twice."""
    log, state, out = tmp_path / "r7.log", tmp_path / "state", tmp_path / "out"
    follower = follow(str(log), "--state", str(state), out=out)
    wait_for(has_begun(state))
    kills = 0
    with write(log, 2000, 20_000) as writer:
        while writer.poll() is None:
            told = len(iterations(out))
            wait_for(lambda told=told: len(iterations(out)) > told or writer.poll() is not None)
            time.sleep(0.3)
            follower.kill()
            follower.communicate()
            kills += 1
            follower = follow(str(log), "--state", str(state), out=out)
    wait_for(lambda: 2000 in iterations(out))
    follower.terminate()
    follower.communicate(timeout=SECONDS)
    all_told = iterations(out)
    repeated = [one for one, following in pairwise(all_told) if one == following]
    assert sorted(set(all_told)) == list(range(1, 2001))
    assert len(all_told) == 2000 + len(repeated)
    assert len(repeated) <= kills
    assert kills >= 3


def test_ranks_that_print_the_same_lines(tmp_path: Path) -> None:
    """Of eight processes that print the same records into files of their own each record is told once."""
    state, out = tmp_path / "state", tmp_path / "out"
    (tmp_path / "logs").mkdir()
    with following(str(tmp_path / "logs" / "rank*.log"), "--state", str(state), out=out):
        wait_for(has_begun(state))
        writers = [write(tmp_path / "logs" / f"rank{rank}.log", 300, 50_000) for rank in range(8)]
        for writer in writers:
            assert writer.wait(SECONDS) == 0
        wait_for(lambda: 300 in iterations(out))
    assert iterations(out) == list(range(1, 301))


def test_standard_input(tmp_path: Path) -> None:
    """What a program prints is told at once; when it is gone, follow is done."""
    out = tmp_path / "out"
    with follow("-", out=out) as process:
        assert process.stdin is not None
        process.stdin.write((training_line(1) + training_line(2)).encode())
        process.stdin.flush()
        wait_for(lambda: iterations(out) == [1, 2])
        process.stdin.write(training_line(3)[:-1].encode())
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert iterations(out) == [1, 2, 3]
    assert err.decode().splitlines()[-1] == "follow: stopped; the run has not ended."


def test_standard_input_stands_alone(tmp_path: Path) -> None:
    """A pipe and a file together, or a place to go on from in a pipe, is one line and exit 1."""
    for arguments in (["-", "x.log"], ["-", "--state", str(tmp_path / "state")]):
        code, out, err = outcome("follow", *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("follow: standard input is followed alone")


def cpu_s(process: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_silence_costs_nothing(tmp_path: Path) -> None:
    """A follow of eight files in which nothing moves takes less than a hundredth of a processor."""
    state = tmp_path / "state"
    for rank in range(8):
        (tmp_path / f"rank{rank}.log").write_text(training_line(1))
    logs = [str(tmp_path / f"rank{rank}.log") for rank in range(8)]
    with following(*logs, "--state", str(state), out=tmp_path / "out") as process:
        wait_for(has_begun(state))
        time.sleep(1)  # what is measured is silence, so it has to last
        before = cpu_s(process.pid)
        time.sleep(5)
        assert cpu_s(process.pid) - before < 0.05


def value(text: str, name: str) -> float:
    """Value of a series in a scrape, by the beginning of its line."""
    found = re.search(rf"^{re.escape(name)}[^\n]* (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_scraped_from_the_first_moment(tmp_path: Path) -> None:
    """Counters are 0 before anything happens, gauges show the past, and each new line is seen."""
    log = tmp_path / "r7.log"
    log.write_text(LOG)
    with Live("follow", str(log), "--to", "scrape:0") as live:
        text = live.wait_for("megatron_training_iteration{")
        assert value(text, "megatron_training_skipped_iters_total") == 0
        assert value(text, 'megatron_training_nonfinite_total{nemo_run_id="r7",otel') == 0
        assert value(text, "megatron_training_iteration") == 10
        assert 'phase="train"} 1.0' in text
        assert "megatron_training_step_duration_ms_milliseconds_count" not in text
        with open(log, "a") as file:
            file.write(training_line(11, skipped=1))
        text = live.wait_for("megatron_training_step_duration_ms_milliseconds_count")
        assert value(text, "megatron_training_skipped_iters_total") == 1
        assert value(text, "megatron_training_iteration") == 11
        code, err = live.stop(signal.SIGTERM)
    assert code == 0
    assert err.splitlines() == [
        "follow: 8 lines read: 4 with results, 4 recognized, 0 skipped.",
        "follow: megatron: 3 training lines, iterations 5 to 11, 1 attempt.",
        "follow: stopped; the run has not ended.",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_end_the_run(tmp_path: Path, number: int) -> None:
    """The run goes on without its follow: the last that is exported is its phase as it was."""
    log = tmp_path / "r7.log"
    log.write_text(training_line(1))
    out = tmp_path / "out"
    with open(out, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "emitter", "follow", str(log), "--to", "console", "--run-id", "r8"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        assert b"run 'r8' at console" in process.stderr.readline()
        time.sleep(1)
        process.send_signal(number)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert err.decode().splitlines()[-1] == "follow: stopped; the run has not ended."
    assert phases(out.read_text())[-1] == "train"


def phases(text: str) -> list[str]:
    """The phase that was 1 at each export to the console."""
    found = []
    for export in re.split(r"^}$", text, flags=re.MULTILINE):
        if not export.strip():
            continue
        for scope in json.loads(export + "}")["resource_metrics"][0]["scope_metrics"]:
            for metric in scope["metrics"]:
                if metric["name"] == "megatron.run.phase":
                    found += [p["attributes"]["phase"] for p in metric["data"]["data_points"] if p["value"] == 1]
    return found


def test_the_end_is_seen_before_follow_stops(tmp_path: Path) -> None:
    """When the log says that the run has ended, whoever scrapes still gets to see it; then follow stops by itself."""
    log = tmp_path / "r7.log"
    log.write_text(LOG)
    with Live("follow", str(log), "--to", "scrape:0", "--linger", "1") as live:
        live.wait_for('phase="train"} 1.0')
        with open(log, "a") as file:
            file.write(END)
        live.wait_for('phase="ended"} 1.0')
        seen = 0
        while live.process.poll() is None:
            with suppress(OSError):  # it stops listening in the middle of a scrape
                seen += 'phase="ended"} 1.0' in live.scrape()
            time.sleep(0.1)
        assert seen > 5
        _, err = live.process.communicate()
    assert live.process.returncode == 0
    assert err.splitlines()[-1] == "follow: the run has ended."


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    """What cannot be opened is said at once, and no state is written."""
    with Live("follow", str(tmp_path / "a.log"), "--to", "scrape:0") as live:
        port = re.search(r":(\d+)/metrics", live.first)
        assert port
        code, out, err = outcome(
            "follow", str(tmp_path / "b.log"), "--to", f"scrape:{port[1]}", "--state", str(tmp_path / "state")
        )
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert not (tmp_path / "state").exists()


def test_metrics_outlive_the_output_beside_them(tmp_path: Path) -> None:
    """A disk that is full under the JSON lines costs these, in one line, and not the metrics."""
    path = tmp_path / "r7.log"
    verb = ("follow", str(path), "--to", "jsonl", "--to", "scrape:0")
    with open("/dev/full", "w") as full, Live(*verb, stdout=full) as live:
        for iteration in (1, 2, 3):
            with open(path, "a") as file:
                file.write(training_line(iteration))
            live.wait_for(f"}} {iteration}.0\n")
        code, err = live.stop(signal.SIGTERM)
    assert code == 0
    assert err.count("standard output takes no more (No space left on device); the metrics go on") == 1
    assert "Traceback" not in err
