"""What the tests with real frameworks share; without the frameworks there is nothing to collect."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from points import Exported, StartRun, points

from emitter.loop import TrainingRun

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]


@pytest.fixture
def start_run() -> Iterator[StartRun]:
    """Start a run that exports to standard output; it ends with the test at last."""
    runs: list[TrainingRun] = []

    def start(**options: object) -> TrainingRun:
        runs.append(TrainingRun("framework", to="console", **options))  # type: ignore[arg-type]
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.fixture
def exported(capsys: pytest.CaptureFixture[str]) -> Exported:
    """Everything that was exported since the last call, oldest first."""
    return lambda: points(capsys.readouterr().out)
