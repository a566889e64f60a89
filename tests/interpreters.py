"""Run the tests that start no server on every other CPython of this machine; `make test` does.

Looks for 3.10 to 3.14 among pyenv's versions and on PATH. One that does not start, or lacks venv, is reported and
passed over. Each has an environment of its own, `.venv-3.N`, made by the same rule of the Makefile as `.venv`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MINORS = range(10, 15)
OWN_MINOR = sys.version_info.minor
ROOT = Path(__file__).parents[1]


def candidates(minor: int) -> Iterator[Path]:
    """Files that may be a CPython 3.<minor>: pyenv's, newest first, then those on PATH."""
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    patches = [int(m[1]) for path in versions.glob("*") if (m := re.fullmatch(rf"3\.{minor}\.(\d+)", path.name))]
    for patch in sorted(patches, reverse=True):
        yield versions / f"3.{minor}.{patch}" / "bin" / "python"
    for folder in os.get_exec_path():
        if (path := Path(folder, f"python3.{minor}")).is_file():
            yield path


def starts(path: Path, minor: int) -> bool:
    """Whether it is a CPython of that version which can make an environment."""
    code = "import sys, ensurepip, venv; print(sys.implementation.name, *sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.split() == ["cpython", "3", str(minor)]


def find() -> dict[int, Path]:
    """Interpreters by minor version, without the one that runs this."""
    found = {}
    for minor in MINORS:
        paths = list(candidates(minor)) if minor != OWN_MINOR else []
        if usable := next((path for path in paths if starts(path, minor)), None):
            found[minor] = usable
        elif paths:
            print(f"Python 3.{minor} is passed over: {paths[0]} does not start, or lacks venv", flush=True)
    return found


def environment(minor: int, interpreter: Path) -> Path:
    """Python of the environment for that version, made if it is not there or not up to date."""
    place = f".venv-3.{minor}"
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--silent", f"VENV={place}", f"PYTHON={interpreter}", f"{place}/.stamp"]
    subprocess.run(command, cwd=ROOT, env=alone, check=True)
    return ROOT / place / "bin" / "python"


def main() -> int:
    """Exit code: 1 if an environment could not be made or a test failed, else 0."""
    found = find()
    print("Other interpreters:", ", ".join(f"3.{n} ({path})" for n, path in found.items()) or "none", flush=True)
    try:
        with ThreadPoolExecutor(2) as pool:
            pythons = list(pool.map(environment, found, found.values()))
    except subprocess.CalledProcessError as error:
        print(f"No environment: {error}", file=sys.stderr)
        return 1
    failed = []
    for minor, python in zip(found, pythons, strict=True):
        print(f"Python 3.{minor}", flush=True)
        tests = [python, "-m", "pytest", "-q", "-m", "not live", "-n", "2", "--dist", "loadfile"]
        if subprocess.run(tests, cwd=ROOT, check=False).returncode:
            failed.append(f"3.{minor}")
    if failed:
        print(f"Tests failed on Python {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
