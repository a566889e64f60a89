"""emitter.spool: what waits on disk comes back as it was, takes no memory, and leaves nothing behind."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from log_commands import ROOT, training_line
from programs import alone

from emitter import catalog
from emitter.openmetrics import Samples
from emitter.spool import Spool, copied

BACKFILL = [sys.executable, "-m", "emitter", "backfill"]


def test_lists_come_back_as_they_were() -> None:
    """In any order: a whole number stays one, and infinities and what is absent are told apart."""
    lists = [[(1, (2, 0.1, math.inf))], [], [(2**70, None), (3, (-0.0, 1e-300))]]
    waiting = Spool()
    places = [waiting.put(values) for values in lists]
    for place, values in reversed(list(zip(places, lists, strict=True))):
        assert repr(waiting.get(place)) == repr(values)
    waiting.clear()
    assert waiting.get(waiting.put([7])) == [7]
    waiting.clear()


def peak(scrapes: int) -> int:
    """Most bytes that are held at once while so many scrapes, each with other values, become text."""
    samples = Samples(1000, {"job": "training"})
    tracemalloc.start()
    try:
        for scrape in range(scrapes):
            samples.take(scrape, [(catalog.LOSS, (), (scrape / 7,)), (catalog.ITERATION, (), (scrape,))], complete=True)
        for _ in samples.write(scrapes):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_samples_take_no_memory_for_the_length_of_their_run() -> None:
    """Four times the scrapes, and no more is held at once."""
    _, short, long = alone(
        __name__, "peak(10_000), peak(2_500), peak(10_000)"
    )  # the first makes time stamps, and keeps them
    assert long < 1.1 * short


def test_a_file_that_waits_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks into the folder finds nothing, so nothing can be left there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    waiting = Spool()
    place = waiting.put([1])
    with copied([b"a", b"b\n"]) as file:
        assert list(tmp_path.iterdir()) == []
        assert (waiting.get(place), file.read()) == ([1], b"ab\n")
    waiting.clear()


def run_of(lines: int) -> str:
    """A log whose every scrape finds other values."""
    return "".join(training_line(number, loss=2 + number / 1000) for number in range(1, lines + 1))


@pytest.mark.parametrize("name", ["r7.log", "-"])
def test_a_full_disk_is_one_line_and_no_output(name: str, tmp_path: Path) -> None:
    """Whether it is the text that waits there or a log that comes through a pipe."""
    (tmp_path / "r7.log").write_text(run_of(600))
    limit = 8192  # bytes of a file; an end like that of a disk, for one process alone
    done = subprocess.run(
        [*BACKFILL, name if name == "-" else str(tmp_path / name), "--to", "openmetrics", "--scrape-interval", "1s"],
        cwd=ROOT,
        input=run_of(600),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "temporary files: there must be room for them (got File too large). Make some, or name another folder as "
        "TMPDIR.\n"
    )


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_way_out_leaves_a_file(number: int, tmp_path: Path) -> None:
    """A signal that can be told of or not, while something waits."""
    with subprocess.Popen(
        [*BACKFILL, "-", "--to", "openmetrics"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(run_of(600).encode())
        process.stdin.flush()
        deadline = time.monotonic() + 30
        while not waits_in(tmp_path, process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=30)
    assert list(tmp_path.iterdir()) == []


def waits_in(folder: Path, process: int) -> bool:
    """Whether a process has a file without a name in a folder."""
    found = []
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return any(path.startswith(str(folder)) for path in found)
