"""The alerts on series as sites really label them: whatever comes, every rule evaluates, and a hang and a NaN fire."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import alert_timeline
import pytest
from alert_timeline import Firing, answer
from conftest import SUITES, tool
from simulation import Process

from alerts.registry import RULE_GROUPS
from dashboards import signals
from provisioning.bundle import Bundle
from provisioning.stack.prometheus import Prometheus

pytestmark = pytest.mark.live

EVENT_S = 2700
UNTIL_S = EVENT_S + 1500
OLD, NEW = "prometheus2", "prometheus3"

TROUBLE = (("TrainingHung", "hung"), ("LossNonFinite", "diverged"))


def runs(**how: Any) -> list[Process]:
    """A healthy run, one that hangs and one that diverges."""
    return [
        Process(run="healthy", cadence=60, **how),
        Process(run="hung", cadence=60, works_until=EVENT_S, **how),
        Process(run="diverged", cadence=60, nan=(EVENT_S, UNTIL_S + 60), **how),
    ]


def twice(processes: Sequence[Process], *, targets: bool = False, **how: Any) -> list[Process]:
    """Every process once as it is and once in another way, on the same target or on another one."""
    others = ({"instance": f"{process.run}-2:9464"} if targets else {} for process in processes)
    return [*processes, *(replace(process, **how, **other) for process, other in zip(processes, others, strict=True))]


def on(target: str) -> dict[str, Any]:
    """The target of a process."""
    return {"instance": f"{target}:9464"}


def successors() -> list[Process]:
    """A target that works for one run and then for another, which hangs; another target diverges."""
    begin = EVENT_S - 1500
    return [
        Process(run="first", cadence=60, ends_at=begin - 300, stop=begin - 100, identity="target_info", **on("a")),
        Process(run="hung", cadence=60, start=begin, works_until=EVENT_S, identity="target_info", **on("a")),
        Process(run="diverged", cadence=60, nan=(EVENT_S, UNTIL_S), identity="target_info", **on("b")),
    ]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Processes, the settings of their site, and the alerts and runs that have to fire."""

    processes: Sequence[Process]
    settings: str = ""
    server: str = OLD
    fire: Sequence[tuple[str, str]] = TROUBLE

    @property
    def rules(self) -> Bundle:
        """The rules of the site."""
        return alert_timeline.rules_of(self.settings)


LABELS_OF_RULES = tuple(
    (label, "7") for label in ("alertname", "gpus", "run", "severity", "signals", "spelling", "asked")
)
ODD = ('"', "\\", "a|b", "$1", "{{ . }}", "日本", "a b'`")

DOTS: dict[str, Any] = {"run_label": "nemo.run.id", "dots": True, "suffixed": False}

CASES = {
    "plain": Case(processes=runs()),
    "two replicas": Case(processes=twice(runs(labels=(("replica", "a"),)), labels=(("replica", "b"),))),
    "further labels": Case(processes=runs(labels=(("pid", "17"), ("le", "1"), ("phase_of_moon", "full")))),
    "labels that rules use": Case(processes=runs(labels=LABELS_OF_RULES)),
    "no target labels": Case(processes=runs(labels=(("job", ""), ("instance", "")))),
    "one run on two targets": Case(processes=twice(runs(), targets=True)),
    "two spellings on two targets": Case(processes=twice(runs(), targets=True, suffixed=False)),
    "two spellings": Case(processes=twice(runs(), suffixed=False)),
    "no run label": Case(processes=runs(identity="none"), fire=()),
    "some without a run label": Case(processes=[*runs(), *runs(identity="none", **on("nobody"))]),
    "odd run ids": Case(
        processes=[Process(run=run, cadence=60, works_until=EVENT_S, instance=f"t{n}") for n, run in enumerate(ODD)],
        fire=[("TrainingHung", run) for run in ODD],
    ),
    "another run label": Case(processes=runs(run_label="exported_run"), settings="series: {run_label: exported_run}"),
    "run label 'run'": Case(processes=runs(run_label="run"), settings="series: {run_label: run}"),
    "namespace": Case(processes=runs(namespace="acme"), settings="series: {namespace: acme}"),
    "target_info": Case(processes=runs(identity="target_info"), settings="series: {identity: target_info}"),
    "target_info, core": Case(
        processes=[process for process in runs(identity="target_info", signals=False) if process.run == "hung"],
        settings="series: {identity: target_info}",
        fire=[("TrainingHung", "hung")],
    ),
    "target_info with a namespace": Case(
        processes=runs(identity="target_info", namespace="acme"),
        settings="series: {identity: target_info, namespace: acme}",
    ),
    "target_info, one run on two targets": Case(
        processes=twice(runs(identity="target_info"), targets=True), settings="series: {identity: target_info}"
    ),
    "a target that changes its run": Case(processes=successors(), settings="series: {identity: target_info}"),
    "two runs claim one target": Case(
        processes=[
            *runs(identity="target_info"),
            Process(run="other", cadence=60, identity="target_info", **on("healthy")),
        ],
        settings="series: {identity: target_info}",
    ),
    "some targets without target_info": Case(
        processes=[*runs(identity="target_info"), *runs(identity="none", **on("nobody"))],
        settings="series: {identity: target_info}",
    ),
    "dots": Case(processes=runs(**DOTS), settings="series: {run_label: nemo.run.id}", server=NEW),
    "dotted label, names with underscores": Case(
        processes=runs(run_label="nemo.run.id"), settings="series: {run_label: nemo.run.id}", server=NEW
    ),
    "dots, target_info": Case(
        processes=runs(identity="target_info", **DOTS),
        settings="series: {run_label: nemo.run.id, identity: target_info}",
        server=NEW,
    ),
    "plain, Prometheus 3": Case(processes=runs(), server=NEW),
    "target_info, Prometheus 3": Case(
        processes=runs(identity="target_info"), settings="series: {identity: target_info}", server=NEW
    ),
}


def fired(firings: Sequence[Firing]) -> list[tuple[str, str]]:
    """Alerts and runs, each as often as it fired with other labels."""
    return sorted((firing.alert, firing.run) for firing in firings)


@dataclass(frozen=True, kw_only=True)
class Served:
    """A case on a server that has its history and evaluates its rules."""

    case: Case
    server: Prometheus
    begin: int


@pytest.fixture(scope="module", params=CASES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Each case on a server of its own."""
    case, folder = CASES[request.param], tmp_path_factory.mktemp("rules")
    blocks, begin = alert_timeline.history(folder, case.processes, UNTIL_S)
    files = []
    for name, text in alert_timeline.rule_files(case.rules).items():
        files.append(folder / name)
        files[-1].write_text(text.replace("interval: 1m", "interval: 200ms"))
    with Prometheus(tool("prometheus", SUITES[case.server]), blocks=blocks, rule_files=files) as server:
        yield Served(case=case, server=server, begin=begin)


def test_the_rules_for_grafana_hold(served: Served) -> None:
    """Each rule for Grafana evaluates at every minute; a hang and a NaN fire once, and nothing else does."""
    firings = list(alert_timeline.asked(served.server, served.case.rules, served.begin, UNTIL_S))
    assert fired(firings) == sorted(served.case.fire), firings


def test_the_rules_of_prometheus_stay_healthy(served: Served) -> None:
    """A Prometheus evaluates every rule, again and again, and reports no error."""
    evaluations: dict[str, set[str]] = defaultdict(set)
    deadline = time.monotonic() + 30
    while not evaluations or min(map(len, evaluations.values())) < 3:
        assert time.monotonic() < deadline, evaluations
        time.sleep(0.1)
        groups = answer(served.server, "rules")["groups"]
        for group in groups:
            evaluations[group["name"]].add(group["lastEvaluation"])
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(signals.SIGNALS) + sum(len(group.rules) for group in RULE_GROUPS)
    assert [rule for rule in rules if rule["health"] != "ok" or rule.get("lastError")] == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rules_of_prometheus_hold(case: Case) -> None:
    """Each rule for Prometheus evaluates at every minute; a hang and a NaN fire once, and nothing else does."""
    firings = alert_timeline.in_promtool(tool("promtool", SUITES[case.server]), case.rules, case.processes, UNTIL_S)
    assert fired(firings) == sorted(case.fire), firings
