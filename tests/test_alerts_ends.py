"""Runs that say `ended` and are gone at once, in both forms, with the staleness markers that a scrape leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alert_timeline import Firing, in_place_in_promtool, in_promtool, rules_of
from conftest import SUITES, tool
from simulation import SCRAPE_S, Process

from alerts import progress

pytestmark = pytest.mark.live

HALF_HOUR = 1800
RULES = replace(rules_of(), rule_groups=(progress.GROUP,))
FORMS = {"recorded": in_promtool, "in place": in_place_in_promtool}

each_form = pytest.mark.parametrize("form", FORMS)
each_cadence = pytest.mark.parametrize("cadence", [5, 60, 1020])


def firings(form: str, processes: list[Process], until: float) -> list[Firing]:
    """What fires in one of the two forms."""
    return FORMS[form](tool("promtool", SUITES["prometheus2"]), RULES, processes, int(until))


def missed_by(cadence: float) -> float:
    """How long after its last scrape a run without an end has been missed."""
    return max(3 * cadence, 900) + 300


@each_cadence
@each_form
def test_an_end_that_was_scraped_once_is_an_end(form: str, cadence: float) -> None:
    """One scrape of `ended`, then nothing, wherever it falls between two looks at the rules: nobody is woken."""
    end = max(HALF_HOUR, 6 * cadence)
    ends = {f"r{later}": end + later for later in range(0, 60, SCRAPE_S)}
    runs = [Process(run=name, cadence=cadence, ends_at=at, stop=at) for name, at in ends.items()]
    assert firings(form, runs, end + 60 + missed_by(cadence)) == []


@each_cadence
@each_form
def test_a_run_without_an_end_is_missed(form: str, cadence: float) -> None:
    """Killed between two scrapes, its series marked stale: TrainingVanished pages."""
    end = max(HALF_HOUR, 6 * cadence)
    (gone,) = firings(form, [Process(run="r", cadence=cadence, stop=end)], end + missed_by(cadence))
    assert (gone.alert, gone.severity) == ("TrainingVanished", "page")


@each_form
@pytest.mark.parametrize("port", [1, 2])
def test_the_end_of_an_attempt_is_not_that_of_the_next(form: str, port: int) -> None:
    """A run that goes on, on its target or another, is at work: killed minutes later it is missed, hung it hangs."""
    runs = []
    for pause in (30, 150, 600):
        again = HALF_HOUR + pause
        for fate, alert in (("stop", "TrainingVanished"), ("works_until", "TrainingHung")):
            name = f"{alert} after {pause}"
            runs.append(Process(run=name, cadence=60, ends_at=HALF_HOUR, stop=HALF_HOUR, instance=f"{name}:1"))
            second = Process(run=name, cadence=60, start=again, first_iteration=100, instance=f"{name}:{port}")
            runs.append(replace(second, **{fate: again + 300}))
    found = {firing.run: firing.alert for firing in firings(form, runs, HALF_HOUR + 900 + missed_by(60))}
    assert found == {run.run: run.run.split()[0] for run in runs}
