"""A short training log, and the command line that reads it, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent

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


def training_line(iteration: int, loss: float = 2.5, skipped: int = 0) -> str:
    """A line of a run of 50 iterations a step of a second, one of them a log interval."""
    return (
        f" [2031-01-02 03:{iteration // 60:02d}:{iteration % 60:02d}] iteration {iteration:8d}/      50 | "
        f"consumed samples: {8 * iteration:12d} | elapsed time per iteration (ms): 1000.0 | "
        f"learning rate: 1.000000E-04 | global batch size:     8 | lm loss: {loss:.6E} | loss scale: 1.0 | "
        f"grad norm: 1.250 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |\n"
    )


def outcome(*arguments: str, text: bytes | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    command = [sys.executable, "-m", "emitter", *arguments]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, timeout=30, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Live:
    """A verb in a process of its own, that serves."""

    def __init__(self, *arguments: str, stdout: int | IO[str] = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "emitter", *arguments],
            cwd=ROOT,
            stdout=stdout,
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
