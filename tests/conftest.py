"""What all test files share: servers on loopback, their order, and no deadline for generated examples."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings

from provisioning.errors import ProvisioningError
from provisioning.stack import tools
from provisioning.stack.prometheus import Prometheus

settings.register_profile("shared", deadline=None)  # a machine that others use too is slow now and then
settings.register_profile("few", settings.get_profile("shared"), max_examples=10)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "shared"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with live tests come first: what takes long is not begun last, when nothing is left to do beside it."""
    live = {item.path for item in items if item.get_closest_marker("live")}
    items.sort(key=lambda item: item.path not in live)


SUITES = {"prometheus2": "bookworm", "prometheus3": "sid"}
"""Debian suite that has the oldest version we serve (2.42) and the newest (3.x)."""


def tool(name: str, suite: str | None = None) -> Path:
    """Binary of a tool. Where it is missing the test is skipped with what to install; with CI set it fails."""
    try:
        return tools.find(name, suite)
    except ProvisioningError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Pytest's, without what earlier tests' threads still say: old SDKs go on trying for a minute after the end."""
    earlier = set(threading.enumerate()) - {threading.current_thread()}

    def is_ours(record: logging.LogRecord) -> bool:
        return threading.current_thread() not in earlier

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)


@pytest.fixture(scope="session")
def prometheus2() -> Path:
    """Binary of the oldest Prometheus we serve."""
    return tool("prometheus", SUITES["prometheus2"])


@pytest.fixture(scope="session")
def prometheus3() -> Path:
    """Binary of the newest Prometheus we serve."""
    return tool("prometheus", SUITES["prometheus3"])


@pytest.fixture(scope="session", params=list(SUITES))
def prometheus_binary(request: pytest.FixtureRequest) -> Path:
    """Binary of each Prometheus we serve; the test runs once with each."""
    return tool("prometheus", SUITES[request.param])


@pytest.fixture(scope="session", params=list(SUITES))
def promtool_binary(request: pytest.FixtureRequest) -> Path:
    """The promtool of each Prometheus we serve; the test runs once with each."""
    return tool("promtool", SUITES[request.param])


@pytest.fixture
def start_prometheus() -> Iterator[Callable[..., Prometheus]]:
    """Start a server as `Prometheus(…)` takes it; it is stopped after the test, which fails if the server died."""
    with ExitStack() as running:

        def start(binary: Path, **options: object) -> Prometheus:
            return running.enter_context(Prometheus(binary, **options))  # type: ignore[arg-type]

        yield start
