"""Run a command, and another one beside it whose output is shown when both are over.

Takes each as one argument. Tests with servers wait most of the time: what they leave of the machine is used so.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile


def run(command: str, beside: str) -> int:
    """Exit code of the first, or else of the second, which is ended if the first fails."""
    with tempfile.TemporaryFile() as told:
        second = subprocess.Popen(shlex.split(beside), stdout=told, stderr=subprocess.STDOUT)
        try:
            if code := subprocess.run(shlex.split(command), check=False).returncode:
                return code
            code = second.wait()
        finally:
            second.terminate()
            second.wait()
        told.seek(0)
        sys.stdout.buffer.write(told.read())
        sys.stdout.flush()
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and what runs with it
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches the commands themselves: each ends as it does
    sys.exit(run(*sys.argv[1:]))
