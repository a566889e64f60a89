"""Every way a process may end, as the board and the alerts see it: real programs, a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from grafana_vars import interpolate
from live import site_bundle
from programs import ENDS, SUDDEN, finish, program
from prometheus_api_client import PrometheusConnect

from dashboards import state
from dashboards.promql import Expr
from dashboards.queries import progress
from dashboards.state import State
from provisioning.stack.prometheus import Prometheus

pytestmark = pytest.mark.live

SITE = site_bundle().site
LIVED_S = 75
"""Rules look once a minute: a run that is to be missed has been seen."""

SOON_S, LATER_S = 60, 1_000
"""After the end: while it is news, and when a run without one is missed."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """A Prometheus that has seen every run end, and when that was."""

    prometheus: PrometheusConnect
    at_s: float

    def runs(self, expr: Expr, after_s: float) -> dict[str, float]:
        """The runs that an expression returns so long after the end, with its values."""
        query = interpolate(str(expr), [*ENDS, *SUDDEN], window="1m", scrape_s=1)
        found = self.prometheus.custom_query(query, params={"time": self.at_s + after_s})
        return {series["metric"]["nemo_run_id"]: float(series["value"][1]) for series in found}


@pytest.fixture(scope="module")
def over(prometheus2: Path) -> Iterator[Over]:
    """Programs that live for a minute, and then end, each in its way and all at once."""
    with ExitStack() as running:
        programs = {
            name: running.enter_context(program(end, "scrape:0", run=name)) for name, end in {**ENDS, **SUDDEN}.items()
        }
        targets = [f"127.0.0.1:{port}" for _, port in programs.values()]
        server = running.enter_context(Prometheus(prometheus2, targets=targets))
        time.sleep(LIVED_S)
        with ThreadPoolExecutor(len(programs)) as pool:
            list(pool.map(finish, [process for process, _ in programs.values()]))
        time.sleep(3)  # a scrape that finds nobody
        yield Over(prometheus=PrometheusConnect(server.url), at_s=time.time())


def test_the_board_tells_an_end_from_a_death(over: Over) -> None:
    """Soon afterwards: whoever could say so has ended; of the others the board knows only that they are silent."""
    states = over.runs(state.state(SITE.panel_scope), SOON_S)
    assert {run for run, value in states.items() if value == State.ENDED} == set(ENDS)
    assert {run for run, value in states.items() if value == State.SILENT} == set(SUDDEN)


def test_only_a_sudden_end_is_missed(over: Over) -> None:
    """A quarter of an hour later TrainingVanished is about the runs that said nothing, and the board agrees."""
    assert set(over.runs(progress.vanished(SITE.in_place_scope), LATER_S)) == set(SUDDEN)
    assert set(over.runs(progress.vanished(SITE.in_place_scope), SOON_S)) == set()
    states = over.runs(state.state(SITE.panel_scope), LATER_S)
    assert {run for run, value in states.items() if value == State.VANISHED} == set(SUDDEN)


def test_nobody_who_is_gone_hangs(over: Over) -> None:
    """A run that exports nothing is no hang, whatever phase it was in."""
    for after_s in (SOON_S, 400, LATER_S, 8_000):
        assert over.runs(progress.hung(SITE.in_place_scope), after_s) == {}
