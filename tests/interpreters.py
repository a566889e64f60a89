"""Run the tests that start no server on every other CPython of this machine, and the emitter's with the oldest SDK.

On versions between the oldest and the newest only the emitter's, which know threads, signals and ends: what else can
differ does so at one of the two. `make test` does. Looks for 3.10 to 3.14 among pyenv's versions and on PATH. One that
does not start, or lacks venv, is reported and passed over. Each has an environment of its own, `.venv-3.N`, made by
the same rule of the Makefile as `.venv`; so has the oldest OpenTelemetry that we allow, `.venv-oldest`, on the oldest
of these versions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MINORS = range(10, 15)
OWN_MINOR = sys.version_info.minor
ROOT = Path(__file__).parents[1]
PINS = ROOT / "constraints.txt"
OLDEST_PINS = ROOT / ".cache" / "oldest.txt"
EMITTER_TESTS = sorted((ROOT / "tests").glob("test_emitter_*.py"))
LOG_TESTS = tuple(f"test_emitter_{name}" for name in ("readers_", "megatron", "tail", "rotation", "place", "spool"))
"""What reads logs needs no OpenTelemetry, old or new, and no thread."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests in an environment of their own."""

    name: str
    interpreter: Path
    place: str
    pins: Path = PINS
    files: tuple[Path, ...] = ()
    """All of them where none is named."""


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


def suites(found: dict[int, Path]) -> list[Suite]:
    """What is to run, given the interpreters that there are."""
    oldest, newest = min((OWN_MINOR, *found)), max((OWN_MINOR, *found))
    files = tuple(path for path in EMITTER_TESTS if not path.name.startswith(LOG_TESTS))
    return [
        *(
            Suite(
                name=f"Python 3.{n}",
                interpreter=path,
                place=f".venv-3.{n}",
                files=files if oldest < n < newest else (),
            )
            for n, path in found.items()
        ),
        Suite(
            name=f"Python 3.{oldest} and the oldest OpenTelemetry",
            interpreter=found.get(oldest, Path(sys.executable)),
            place=".venv-oldest",
            pins=OLDEST_PINS,
            files=files,
        ),
    ]


def pins_by_name(file: Path) -> dict[str, str]:
    """The lines of a file of pins by the name of their package, comments left out."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    return {line.partition("==")[0]: line for line in lines}


def oldest_pins() -> str:
    """Every pin of the oldest environment: constraints.txt, but for OpenTelemetry and what goes with it."""
    kept = {name: line for name, line in pins_by_name(PINS).items() if not name.startswith("opentelemetry-")}
    return "\n".join({**kept, **pins_by_name(ROOT / "tests" / "oldest.txt")}.values()) + "\n"


def write_oldest_pins() -> None:
    """Put them where make finds them; a file that would stay the same keeps its date, and its environment."""
    text = oldest_pins()
    if not OLDEST_PINS.exists() or OLDEST_PINS.read_text() != text:
        OLDEST_PINS.parent.mkdir(exist_ok=True)
        OLDEST_PINS.write_text(text)


def environment(suite: Suite) -> Path:
    """Python of the suite's environment, made if it is not there or not up to date."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    settings = (f"VENV={suite.place}", f"PYTHON={suite.interpreter}", f"PINS={suite.pins.relative_to(ROOT)}")
    subprocess.run(["make", "--silent", *settings, f"{suite.place}/.stamp"], cwd=ROOT, env=alone, check=True)
    return ROOT / suite.place / "bin" / "python"


def main() -> int:
    """Exit code: 1 if an environment could not be made or a test failed, else 0."""
    found = find()
    print("Other interpreters:", ", ".join(f"3.{n} ({path})" for n, path in found.items()) or "none", flush=True)
    wanted = suites(found)
    write_oldest_pins()
    try:
        with ThreadPoolExecutor(2) as pool:
            pythons = list(pool.map(environment, wanted))
    except subprocess.CalledProcessError as error:
        print(f"No environment: {error}", file=sys.stderr)
        return 1
    few = {**os.environ, "HYPOTHESIS_PROFILE": "few"}  # many examples are tried where every test runs
    failed = []
    for suite, python in zip(wanted, pythons, strict=True):
        print(suite.name, flush=True)
        tests = [python, "-m", "pytest", "-q", "-m", "not live", "-n", "2", "--dist", "loadfile", *suite.files]
        if subprocess.run(tests, cwd=ROOT, env=few, check=False).returncode:
            failed.append(suite.name)
    if failed:
        print(f"Tests failed on {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
