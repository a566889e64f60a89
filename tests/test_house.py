"""The house: the pinned environment, the targets of make, and the interpreters that the tests run on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import interpreters
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
REQUIREMENTS = [
    Requirement(text) for text in (*PROJECT["dependencies"], *(text for extra in EXTRAS.values() for text in extra))
]
EMITTER_REQUIREMENTS = [Requirement(text) for text in (*PROJECT["dependencies"], *EXTRAS["otlp"])]


def pins(lines: list[str]) -> list[Requirement]:
    return [Requirement(line) for line in lines if not line.startswith("#")]


PINS = pins((ROOT / "constraints.txt").read_text().splitlines())
FRAMEWORK_PINS = pins((ROOT / "tests" / "frameworks.txt").read_text().splitlines())
OLDEST_PINS = pins(interpreters.oldest_pins().splitlines())


def pinned(requirement: Requirement, among: list[Requirement]) -> Version:
    """The one version that a package is pinned to."""
    (pin,) = [pin for pin in among if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement) -> None:
    """The environment is made from constraints.txt alone: what pyproject.toml asks for is in it."""
    assert requirement.specifier.contains(pinned(requirement, PINS), prereleases=True)


@pytest.mark.parametrize("requirement", EMITTER_REQUIREMENTS, ids=str)
def test_the_oldest_environment_is_at_the_lower_bounds(requirement: Requirement) -> None:
    """The emitter's tests run with the very versions that pyproject.toml names as the oldest, of all it needs."""
    (lowest,) = [bound.version for bound in requirement.specifier if bound.operator == ">="]
    assert pinned(requirement, OLDEST_PINS) == Version(lowest)


def test_the_oldest_environment_mixes_no_releases() -> None:
    """Every OpenTelemetry package in it is of the oldest release."""
    asked_for, there = (
        {pinned(package, OLDEST_PINS) for package in packages if package.name.startswith("opentelemetry-")}
        for packages in (EMITTER_REQUIREMENTS, OLDEST_PINS)
    )
    assert there == asked_for


@pytest.mark.parametrize("among", [PINS, OLDEST_PINS, FRAMEWORK_PINS], ids=["constraints", "oldest", "frameworks"])
def test_pins_are_names_and_versions_only(among: list[Requirement]) -> None:
    """No pin says where its package comes from, and none is given twice."""
    assert not [str(pin) for pin in among if pin.url or len(pin.specifier) != 1]
    names = [canonicalize_name(pin.name) for pin in among]
    assert sorted(set(names)) == sorted(names)


def test_each_target_of_make_says_what_it_does() -> None:
    """`make` alone lists every target with a sentence."""
    listed = subprocess.run(["make", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^make ([a-z]+) +[A-Z].+$", listed, re.M)
    assert targets == ["help", "provision", "test", "lint", "fmt", "demo", "live", "frameworks", "bench"]
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony
    assert phony[1].split() == targets


def interpreter(path: Path, says: str) -> Path:
    """An executable that answers the probe with these words, or fails without any."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n" if says else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any interpreter, run by a Python 3.11."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}")
    monkeypatch.setattr(interpreters, "OWN_MINOR", 11)
    return tmp_path


def test_the_newest_of_pyenv_is_taken(machine: Path) -> None:
    """By number, not by letter; a free-threaded build is another interpreter."""
    for version in ("3.12.9", "3.12.10", "3.12.11t"):
        interpreter(machine / "pyenv" / "versions" / version / "bin" / "python", "cpython 3 12")
    there = machine / "pyenv" / "versions" / "3.12.10" / "bin" / "python"
    assert interpreters.find() == {12: there}


def test_one_that_does_not_start_is_passed_over(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shim without a version behind it gives way to the next on PATH; where there is none, it is reported."""
    interpreter(machine / "shims" / "python3.10", "")
    interpreter(machine / "shims" / "python3.13", "")
    there = interpreter(machine / "bin" / "python3.13", "cpython 3 13")
    assert interpreters.find() == {13: there}
    assert re.findall(r"Python (\S+) is passed over", capsys.readouterr().out) == ["3.10"]


def test_another_python_is_not_taken_for_cpython(machine: Path) -> None:
    """PyPy, or a name that lies about its version, is no interpreter of ours."""
    interpreter(machine / "bin" / "python3.10", "pypy 3 10")
    interpreter(machine / "bin" / "python3.12", "cpython 3 9")
    assert interpreters.find() == {}


def test_the_running_version_is_not_run_twice(machine: Path) -> None:
    """The tests ran on this version already."""
    interpreter(machine / "bin" / "python3.11", "cpython 3 11")
    assert interpreters.find() == {}


@pytest.mark.parametrize(("answer", "code"), [("exit 0", 0), ("exit 1", 1)])
def test_a_failure_on_one_interpreter_fails_the_run(
    answer: str, code: int, machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A failing test run is never lost among those that pass."""
    python = machine / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    good = interpreter(machine / "good", "1 passed")
    monkeypatch.setattr(interpreters, "find", lambda: {12: python, 13: good})
    monkeypatch.setattr(
        interpreters, "environment", lambda suite: good if suite.place == ".venv-oldest" else suite.interpreter
    )
    assert interpreters.main() == code
    out, err = capfd.readouterr()
    assert "Python 3.13\n1 passed" in out
    assert ("Tests failed on Python 3.12" in err) is bool(code)


@pytest.mark.parametrize(("others", "oldest"), [((10, 13), 10), ((12, 13), 11), ((), 11)])
def test_the_oldest_sdk_is_met_by_the_oldest_python(others: tuple[int, ...], oldest: int, machine: Path) -> None:
    """The emitter's tests run once more, with the oldest SDK, on the oldest interpreter that there is."""
    found = {minor: machine / str(minor) for minor in others}
    *same, last = interpreters.suites(found)
    assert [suite.interpreter for suite in same] == list(found.values())
    assert last.interpreter == found.get(oldest, Path(sys.executable))
    assert last.pins == interpreters.OLDEST_PINS
    assert ROOT / "tests" / "test_emitter_export.py" in last.files


def test_versions_in_between_run_the_emitters_tests(machine: Path) -> None:
    """All tests on the oldest and on the newest interpreter, those of what knows its interpreter on the others."""
    *same, _ = interpreters.suites(dict.fromkeys((10, 12, 13), machine))
    assert [bool(suite.files) for suite in same] == [False, True, False]
    assert ROOT / "tests" / "test_emitter_ends.py" in same[1].files


def test_an_environment_that_cannot_be_made_fails_the_run(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that starts but cannot be served is a failure, not a skip."""

    def fail(suite: interpreters.Suite) -> Path:
        raise subprocess.CalledProcessError(2, ["make"])

    monkeypatch.setattr(interpreters, "find", lambda: {12: machine})
    monkeypatch.setattr(interpreters, "environment", fail)
    assert interpreters.main() == 1


def test_the_first_table_of_the_readme_leads_somewhere() -> None:
    """A newcomer finds the loss panel, the hang alert and a metric's name: every path is there, every name is in it."""
    first = (ROOT / "README.md").read_text().partition("## Start")[0]
    rows = [line for line in first.splitlines() if line.startswith("| ")][1:]
    found = [re.findall(r"`([^`]+)`", row.split("|")[2]) for row in rows]
    assert len(found) >= 10
    for path, *names in found:
        assert (ROOT / path).exists(), path
        for name in names:
            assert (ROOT / name).exists() or re.search(rf"\b{name}\b", (ROOT / path).read_text()), (path, name)


def test_the_repository_speaks_of_the_product_alone() -> None:
    """No path of anybody's machine and no address of a package registry."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    words = ("/root" + "/", "/home" + "/", "pypi" + ".org", "deb.debian" + ".org", "python" + "hosted")
    for name in filter(None, tracked):
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        assert not [word for word in words if word in text], name
