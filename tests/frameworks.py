"""Run the tests of the framework callbacks with the real PyTorch Lightning and Transformers.

They have an environment of their own, `.venv-frameworks`, of constraints.txt and tests/frameworks.txt. It is made when
these change: a download of 2.5 GB, and twice that on the disk.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINS = (ROOT / "constraints.txt", ROOT / "tests" / "frameworks.txt")
PLACE = ROOT / ".venv-frameworks"
OLDEST = (3, 11)
"""The frameworks' present versions have none for an older Python."""


def environment() -> Path:
    """Python of the environment, made if it is not there or not up to date."""
    python = PLACE / "bin" / "python"
    stamp = PLACE / ".stamp"
    wanted = "".join(file.read_text() for file in PINS)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"Making {PLACE.name}: some two minutes", flush=True)
        venv.create(PLACE, clear=True, with_pip=True)
        files = [argument for file in PINS for argument in ("-r", file)]
        options = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--no-compile")
        subprocess.run([python, "-m", "pip", "install", *options, *files], check=True)
        stamp.write_text(wanted)
    return python


def main() -> int:
    """Exit code: 1 if the environment could not be made, else that of the tests."""
    if sys.version_info < OLDEST:
        print(f"The framework callbacks are passed over: their tests need Python {'.'.join(map(str, OLDEST))}")
        return 0
    try:
        python = environment()
    except subprocess.CalledProcessError as error:
        print(f"No environment: {error}", file=sys.stderr)
        return 1
    # What the frameworks warn of, and leave open, is theirs.
    tests = [python, "-m", "pytest", "-q", "-o", "filterwarnings=default", "--disable-warnings", "tests/frameworks"]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # and the download with it
    sys.exit(main())
