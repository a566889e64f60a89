"""Rules as files: what Prometheus and Grafana demand of their formats, and that nobody is paged twice."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from alerts.registry import RULE_GROUPS
from dashboards import signals
from provisioning import bundle
from provisioning.site import ALERT_FOLDER, BOARD_FOLDER, parse
from provisioning.targets import grafana_alerts, prometheus

RULES = [rule for group in RULE_GROUPS for rule in group.rules]
NAMES = [rule.name for rule in RULES]


def grafana(site: str = "") -> dict[str, dict[str, Any]]:
    """Every rule of the Grafana files by title."""
    files = grafana_alerts.render(bundle.collect(parse(site, "site.yaml")))
    documents = [yaml.safe_load(text) for text in files.values()]
    return {rule["title"]: rule for document in documents for group in document["groups"] for rule in group["rules"]}


def alerting(site: str = "") -> dict[str, dict[str, Any]]:
    """Every alert of the Prometheus files by name."""
    files = prometheus.render(bundle.collect(parse(site, "site.yaml")))
    rules = [rule for text in files.values() for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule for rule in rules if "alert" in rule}


def test_both_engines_have_every_alert() -> None:
    """One model, two forms: neither leaves an alert out."""
    assert list(grafana()) == NAMES
    assert sorted(alerting()) == sorted(NAMES)


def test_files_are_named_after_the_symptom() -> None:
    """alerts/progress.py becomes progress.yaml in both trees; the recording rules have a file of their own."""
    everything = bundle.collect(parse("", "site.yaml"))
    groups = {group.name for group in RULE_GROUPS}
    assert set(grafana_alerts.render(everything)) == {f"grafana/provisioning/alerting/{name}.yaml" for name in groups}
    assert set(prometheus.render(everything)) == {f"prometheus/rules/{name}.yaml" for name in groups | {"signals"}}


def test_recording_rules_stand_only_on_those_before_them() -> None:
    """A group is evaluated in order: a later rule would be read a round too late."""
    text = prometheus.render(bundle.collect(parse("", "site.yaml")))["prometheus/rules/signals.yaml"]
    known: set[str] = set()
    for rule in yaml.safe_load(text)["groups"][0]["rules"]:
        used = {signal.name for signal in signals.SIGNALS if signal.name in rule["expr"]}
        assert used <= known | {rule["record"]}
        known.add(rule["record"])


def test_alerts_read_only_signals_that_are_recorded() -> None:
    """Every recording name in an alert has its rule, and every rule is used."""
    every = " ".join(rule["expr"] for rule in alerting().values())
    recorded = {signal.name for signal in signals.SIGNALS}
    used = set(re.findall(r"(?:process|run):\w+:\w+", every))
    text = prometheus.render(bundle.collect(parse("", "site.yaml")))["prometheus/rules/signals.yaml"]
    in_signals = {name for name in recorded if text.count(name) > 2}
    assert used <= recorded
    assert recorded <= used | in_signals


def test_only_classic_keys() -> None:
    """Prometheus 2.42, Mimir, Thanos and vmalert refuse a file with a key that they do not know."""
    for text in prometheus.render(bundle.collect(parse("", "site.yaml"))).values():
        (group,) = yaml.safe_load(text)["groups"]
        assert set(group) == {"name", "interval", "rules"}
        assert len(group["rules"]) <= 20  # the limit of a Mimir tenant
        for rule in group["rules"]:
            assert set(rule) in ({"record", "expr"}, {"alert", "expr", "for", "labels", "annotations"})


@pytest.mark.parametrize("title", NAMES)
def test_a_grafana_rule_loads_from_9_4_on(title: str) -> None:
    """What start-up refuses on some version: no `for`, an odd uid, KeepLast, unequal data sources, fractions."""
    rule = grafana()[title]
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", rule["uid"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["noDataState"] == "OK"
    assert rule["execErrState"] == "Error"
    query, condition = rule["data"]
    assert rule["condition"] == condition["refId"] == "C"
    assert query["datasourceUid"] == query["model"]["datasource"]["uid"] == "training-metrics"
    assert query["model"]["instant"] is True
    assert query["model"]["range"] is False
    assert all(isinstance(seconds, int) for part in rule["data"] for seconds in part["relativeTimeRange"].values())
    assert query["relativeTimeRange"]["from"] > query["relativeTimeRange"]["to"]
    assert condition["datasourceUid"] == "__expr__"
    assert condition["model"]["expression"] == "is_number($A) || is_nan($A) || is_inf($A)"
    assert rule["annotations"]["__panelId__"].isdigit()


@pytest.mark.parametrize("title", NAMES)
def test_dollars_are_doubled_in_labels_alone(title: str) -> None:
    """Grafana expands `$labels` in the labels of a file to nothing, and reads annotations as they are."""
    rule = grafana()[title]
    assert "$" not in rule["title"]
    assert not any(re.search(r"(?<!\$)\$(?!\$)", text) for text in rule["labels"].values())
    assert not any("$$" in text for text in rule["annotations"].values())
    assert not any("${" in text for text in rule["annotations"].values())
    assert "$" not in rule["data"][0]["model"]["expr"]


def test_uids_are_unique() -> None:
    """A uid is unique in the organization, whatever the folder."""
    assert len({rule["uid"] for rule in grafana().values()}) == len(NAMES)


def test_self_contained() -> None:
    """A Grafana rule reads no recording rule: old versions have none."""
    assert not any(
        re.search(r"(process|run):megatron", rule["data"][0]["model"]["expr"]) for rule in grafana().values()
    )


def test_one_engine_pages() -> None:
    """With Prometheus as the engine Grafana's copies are paused."""
    assert {rule["isPaused"] for rule in grafana().values()} == {False}
    assert {rule["isPaused"] for rule in grafana("alerting: {engine: prometheus}").values()} == {True}


def test_rules_and_boards_live_in_two_folders() -> None:
    """Grafana 12 would make two folders of one title, and split them."""
    files = grafana_alerts.render(bundle.collect(parse("", "site.yaml"))).values()
    assert {group["folder"] for text in files for group in yaml.safe_load(text)["groups"]} == {ALERT_FOLDER}
    assert ALERT_FOLDER != BOARD_FOLDER
    assert "/" not in ALERT_FOLDER


def test_severity_is_in_the_words_of_the_site() -> None:
    """Also where it depends on what the emitter can tell."""
    site = "alerting: {severities: {page: critical, ticket: warning, note: info}}"
    expected = '{{ if eq $labels.signals "yes" }}critical{{ else }}warning{{ end }}'
    assert alerting(site)["TrainingHung"]["labels"]["severity"] == "critical"
    assert alerting(site)["TrainingVanished"]["labels"]["severity"] == expected
    assert grafana(site)["TrainingVanished"]["labels"]["severity"] == expected.replace("$", "$$")
    assert grafana(site)["Watchdog"]["labels"] == {"severity": "info"}


@pytest.mark.parametrize("label", ["job_run", "nemo.run.id"])
def test_every_alert_carries_the_run_whatever_the_label_of_the_site(label: str) -> None:
    """Routing and inhibition use `run`; texts and links use the label that the result really has."""
    site = f"series: {{run_label: {label}}}"
    plain = label.replace(".", "_")
    for name in set(NAMES) - {"Watchdog"}:
        ours, theirs = alerting(site)[name], grafana(site)[name]
        assert ours["labels"]["run"] == f"{{{{ $labels.{plain} }}}}"
        assert theirs["labels"]["run"] == f"{{{{ $$labels.{plain} }}}}"
        for rule in (ours, theirs):
            assert f"var-run={{{{ $labels.{plain} | urlquery }}}}" in rule["annotations"]["panel_url"]
            assert f"{{{{ $labels.{plain} }}}}" in rule["annotations"]["summary"]


def test_links_lead_to_the_site() -> None:
    """Panel and runbook where the site publishes them; the heading is the alert's name in lower case."""
    site = "grafana: {url: https://grafana.example/}\nalerting: {runbook_url: https://docs.example/runbook}"
    notes = alerting(site)["LossNonFinite"]["annotations"]
    assert notes["panel_url"].startswith("https://grafana.example/d/training-run?viewPanel=7&var-run=")
    assert notes["runbook_url"] == "https://docs.example/runbook#lossnonfinite"
