"""Runs that come back: after hours, with another log interval, or between two looks at the rules; in both forms."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from alert_timeline import Firing, answer, grafana_rules, history, in_promtool, on_prometheus, query_of, rules_of
from conftest import SUITES, tool
from simulation import Process

from provisioning.stack.prometheus import Prometheus

pytestmark = pytest.mark.live

H = 3600
FORMS = ("recorded", "in place")


def firings(form: str, processes: list[Process], until: int) -> list[Firing]:
    """What fires in one of the two forms."""
    if form == "recorded":
        return in_promtool(tool("promtool", SUITES["prometheus2"]), rules_of(), processes, until)
    return on_prometheus(tool("prometheus", SUITES["prometheus3"]), rules_of(), processes, until)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_resumes_after_hours_and_hangs_is_found_at_once(form: str) -> None:
    """The time it was away is no part of its cadence."""
    back = 8 * H
    first = Process(run="r", cadence=60, ends_at=H, stop=H + 120, instance="a:1")
    second = Process(run="r", cadence=60, start=back, works_until=back + 600, first_iteration=100, instance="b:1")
    (hang,) = firings(form, [first, second], back + H)
    assert hang.alert == "TrainingHung"
    assert back + 600 + 240 <= hang.first <= back + 600 + 540


@pytest.mark.parametrize("form", FORMS)
def test_a_longer_log_interval_after_a_restart_is_no_hang(form: str) -> None:
    """The new process is measured by itself, and has time to show what its interval is."""
    first = Process(run="r", cadence=60, stop=H, instance="a:1")
    second = Process(run="r", cadence=600, start=H + 100, first_iteration=100, instance="b:1")
    assert firings(form, [first, second], 4 * H) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_killed_run_pages_once(form: str) -> None:
    """It is forgotten as a whole: the alert does not come back with other labels."""
    (gone,) = firings(form, [Process(run="r", cadence=60, stop=H)], 8 * H)
    assert gone.alert == "TrainingVanished"
    assert gone.gaps == 0
    assert gone.last < 7 * H


@pytest.mark.parametrize("form", FORMS)
def test_fewer_gpus_after_a_restart_are_what_stands_idle(form: str) -> None:
    """A node was drained: the hang costs what the run has now."""
    first = Process(run="r", cadence=60, world_size=1024, stop=H, instance="a:1")
    second = Process(run="r", cadence=60, world_size=512, start=H + 100, works_until=2 * H, instance="b:1")
    (hang,) = firings(form, [first, second], 3 * H)
    assert dict(hang.labels)["gpus"] == "512"


def test_the_first_log_after_an_outage_is_no_hang_at_whatever_second_one_looks() -> None:
    """The moments of Grafana's form are known to the minute; a log within that minute counts all the same."""
    back = 3 * H + 30
    first = Process(run="r", cadence=60, signals=False, stop=H, instance="a:1")
    second = Process(run="r", cadence=60, signals=False, start=back - 60, instance="b:1")
    rules = grafana_rules(rules_of())
    with tempfile.TemporaryDirectory(prefix="megatron-watch-rules-") as folder:
        blocks, begin = history(Path(folder), [first, second], 4 * H)
        with Prometheus(tool("prometheus", SUITES["prometheus3"]), blocks=blocks) as server:
            for second_after in range(0, 180, 10):
                at = begin + back + second_after
                found = answer(server, "query", query=query_of(rules["TrainingHung"]), time=at)["result"]
                assert found == [], second_after
