"""Two commands at once: neither's failure nor output is lost, and nothing is left running."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BESIDE = Path(__file__).with_name("beside.py")


def python(code: str) -> str:
    """A command that runs it."""
    return shlex.join([sys.executable, "-c", code])


def lasting(file: Path) -> str:
    """A command that writes its process id there, and runs on."""
    return python(f"import os, time; open({str(file)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(60)")


def process_id(file: Path) -> int:
    """What `lasting` wrote, once it has."""
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(file.read_text())


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("first", "second", "expected"), [(0, 0, 0), (0, 3, 3), (2, 0, 2), (2, 3, 2)])
def test_neither_failure_is_lost(first: int, second: int, expected: int) -> None:
    """Whichever fails, both do."""
    commands = [python(f"raise SystemExit({code})") for code in (first, second)]
    assert subprocess.run([sys.executable, BESIDE, *commands], check=False).returncode == expected


@pytest.mark.parametrize("code", [0, 1])
def test_what_runs_beside_is_shown_at_the_end(code: int) -> None:
    """In one piece, errors included, whether it failed or not."""
    second = python(f"import sys; print('a', flush=True); print('b', file=sys.stderr); sys.exit({code})")
    command = [sys.executable, BESIDE, python("print('first')"), second]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("first\na\nb\n", "")


def test_a_failure_ends_what_runs_beside(tmp_path: Path) -> None:
    """Nobody waits for it, and it does not stay."""
    there = tmp_path / "second"
    first = python(f"import os, time\nwhile not os.path.exists({str(there)!r}): time.sleep(0.01)\nraise SystemExit(1)")
    assert subprocess.run([sys.executable, BESIDE, first, lasting(there)], check=False, timeout=30).returncode == 1
    assert not running(process_id(there))


@pytest.mark.parametrize("told_to", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_it_ends_everything(told_to: signal.Signals, tmp_path: Path) -> None:
    """A CI that gives up, or Ctrl-C, leaves nothing running, not even what a command has started, and no traceback."""
    files = [tmp_path / name for name in ("first", "second", "child")]
    first, second, child = map(lasting, files)
    shell = shlex.join(["sh", "-c", f"{child} & {second}"])
    with subprocess.Popen([sys.executable, BESIDE, first, shell], stderr=subprocess.PIPE, text=True) as process:
        processes = [process_id(file) for file in files]
        process.send_signal(told_to)
        _, err = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "beside.py" not in err
    deadline = time.monotonic() + 20  # the child's parent is gone: who reaps it takes its time
    while any(map(running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
