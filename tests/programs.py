"""Training programs that end in every way a process can, and scrape targets while they live."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

HEAD = """
import os, signal, sys, time
from emitter import TrainingRun
run = TrainingRun(sys.argv[1], to=sys.argv[2:], interval_s=3600)
run.step(loss=2.0)
run.step(loss=1.5)
print(run.telemetry.addresses[0][1] if run.telemetry.addresses else 0, flush=True)
sys.stdin.readline()
"""

ENDS = {
    "a with block": "with run: run.step(loss=1.25)",
    "an exception": "with run: raise SystemError('out of luck')",
    "the end of the program": "run.step(loss=1.25)",
    "sys.exit": "sys.exit(3)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    "an interrupt": "signal.raise_signal(signal.SIGINT)",
}
"""Ends that a process can say something about."""

SUDDEN = {
    "os._exit": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}
"""Ends that it cannot."""

CODES = {"an exception": 1, "sys.exit": 3, "SIGTERM": -signal.SIGTERM, "an interrupt": -signal.SIGINT}
CODES["SIGKILL"] = -signal.SIGKILL


@contextmanager
def program(end: str, *to: str, run: str = "r") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A training program that waits for a line and then ends so; yields it and its scrape port."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "MEGATRON_OTEL_", "NEMO_LENS_"))}
    command = [sys.executable, "-c", HEAD + end, run, *to]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Let the program end; its exit code and what it said."""
    _, said = process.communicate("\n", timeout=40)
    return process.returncode, said


def alone(module: str, expressions: str) -> list[Any]:
    """Values of expressions with what a test module has, in a process of its own: no other thread takes memory."""
    code = f"from {module} import *; print([{expressions}])"
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    values: list[Any] = ast.literal_eval(done.stdout)
    return values
