"""Run a command, and another one beside it whose output is shown when both are over.

Takes each as one argument. Tests with servers wait most of the time: what they leave of the machine is used so.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def started(command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command, which is ended with all that it started."""
    process = subprocess.Popen(shlex.split(command), start_new_session=True, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def run(command: str, beside: str) -> int:
    """Exit code of the first, or else of the second, which is ended if the first fails."""
    with tempfile.TemporaryFile() as told:
        with started(beside, stdout=told, stderr=subprocess.STDOUT) as second, started(command) as first:
            try:
                if code := first.wait():
                    return code
                code = second.wait()
            except KeyboardInterrupt:  # the first one says how far it came
                if first.poll() is None:
                    os.killpg(first.pid, signal.SIGINT)
                return first.wait() or 1
        told.seek(0)
        sys.stdout.buffer.write(told.read())
        sys.stdout.flush()
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    sys.exit(run(*sys.argv[1:]))
