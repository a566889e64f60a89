"""`site.yaml`: works unedited, and what is wrong in it is said at once, with its key."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from provisioning.site import Site, SiteError, parse

SITE_YAML = Path(__file__).parents[1] / "site.yaml"


def problems(text: str) -> list[str]:
    """The lines of the refusal of a settings text."""
    with pytest.raises(SiteError) as refused:
        parse(text, "site.yaml")
    return str(refused.value).splitlines()


def keys(section: Any) -> dict[str, Any]:
    """Every key of a settings class with its default, sections as mappings."""
    if isinstance(section, BaseModel):
        return {key: keys(getattr(section, key)) for key in type(section).model_fields}
    if dataclasses.is_dataclass(section):
        return {field.name: keys(getattr(section, field.name)) for field in dataclasses.fields(section)}
    return list(section) if isinstance(section, tuple) else section


def test_the_file_of_the_checkout_documents_every_key_with_its_default() -> None:
    """Who edits site.yaml sees all that can be set, and what holds if nothing is."""
    text = SITE_YAML.read_text(encoding="utf-8")
    assert yaml.safe_load(text) == keys(Site())
    assert parse(text, "site.yaml") == Site()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key = line.strip().partition(":")[0]
        if line.strip() and not line.strip().startswith("#"):
            assert "#" in line or "#" in lines[number - 1], f"{key} has no comment"


@pytest.mark.parametrize("text", ["", "# nothing\n", "series:\n", "grafana: {url: }\n"])
def test_what_is_left_out_or_empty_keeps_its_default(text: str) -> None:
    """An empty file works, and so does a section whose keys are all commented out."""
    assert parse(text, "site.yaml") == Site()


def test_settings_reach_the_classes_of_the_packages() -> None:
    """A key sets the field of the class that uses it."""
    site = parse(
        "series: {run_label: nemo.run.id, labels: [cluster]}\n"
        "run: {world_size: 4096}\n"
        "dashboards: {min_window: 1h}\n"
        "grafana: {url: 'https://grafana.example/'}",
        "site.yaml",
    )
    assert site.series.run == "nemo_run_id"
    assert site.series.labels == ("cluster",)
    assert site.panel_scope.world_size == 4096
    assert site.dashboards.min_window == "1h"
    assert site.grafana.url == "https://grafana.example"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "grafana: {datasorce: {}}",
            "site.yaml: grafana.datasorce: no such key (did you mean 'datasource'?). "
            "Keys here: url, datasource, dashboards_path.",
        ),
        (
            "series: {run_lable: x}",
            "site.yaml: series.run_lable: no such key (did you mean 'run_label'?). "
            "Keys here: run_label, identity, namespace, labels.",
        ),
        (
            "zzz: 1",
            "site.yaml: zzz: no such key. Keys here: series, scrape_interval, run, dashboards, alerting, grafana.",
        ),
        (
            "alerting: {engine: prom}",
            "site.yaml: alerting.engine: must be 'grafana' or 'prometheus' (got 'prom') (did you mean 'prometheus'?).",
        ),
        (
            "series: {identity: targetinfo}",
            "site.yaml: series.identity: must be 'label' or 'target_info' (got 'targetinfo') "
            "(did you mean 'target_info'?).",
        ),
        ("scrape_interval: 15", "site.yaml: scrape_interval: must be text (got 15)."),
        (
            "scrape_interval: 15 s",
            "site.yaml: scrape_interval: must be a duration like '30s', '5m' or '1h30m' (got '15 s').",
        ),
        *(
            (
                f"alerting: {{interval: {interval}}}",
                "site.yaml: alerting.interval: must be a multiple of 10s and at most 60s: rules compare a run with "
                f"itself a minute ago (got '{interval}').",
            )
            for interval in ("15s", "2m")
        ),
        ("dashboards: {min_window: 30s}", "site.yaml: dashboards.min_window: must be at least 60s (got '30s')."),
        (
            "scrape_interval: 1m\ndashboards: {min_window: 3m}",
            "site.yaml: dashboards.min_window must be at least 4 times scrape_interval, 240s (got '3m').",
        ),
        (
            "scrape_interval: 2m\ndashboards: {min_window: 8m}",
            "site.yaml: scrape_interval: must be at most 60s: rules look back by minutes (got '2m').",
        ),
        ("run: {world_size: 0}", "site.yaml: run.world_size: must be greater than 0 (got 0)."),
        ("run: {world_size: many}", "site.yaml: run.world_size: must be a whole number (got 'many')."),
        ("run: 5", "site.yaml: run: must be a mapping of settings (got 5)."),
        ("series: {labels: cluster}", "site.yaml: series.labels: must be a list (got 'cluster')."),
        (
            "series: {labels: [nemo_run_id]}",
            "site.yaml: series: run_label and labels must be distinct and not empty "
            "(got ['nemo_run_id', 'nemo_run_id']).",
        ),
        (
            "series: {labels: [run]}",
            "site.yaml: series: run_label and labels must be labels of no other meaning (got 'run').",
        ),
        (
            "series: {run_label: phase}",
            "site.yaml: series: run_label and labels must be labels of no other meaning (got 'phase').",
        ),
        (
            "alerting: {severities: {page: ticket}}",
            "site.yaml: alerting.severities: page, ticket and note must be three different words "
            "(got ['ticket', 'ticket', 'note']).",
        ),
        (
            "grafana: {datasource: {uid: a b}}",
            "site.yaml: grafana.datasource.uid: must be 1 to 40 letters, digits, '-' or '_' (got 'a b').",
        ),
        (
            "grafana: {url: grafana.example}",
            "site.yaml: grafana.url: must be a URL that begins with http:// or https:// (got 'grafana.example').",
        ),
        ("a: [", "site.yaml:2: must be YAML (got this: did not find expected node content)."),
        ("run: {}\nrun: {}", "site.yaml:2: must be YAML (got this: key 'run' is given twice)."),
        ("- 1", "site.yaml: must be a mapping of settings (got [1])."),
        ("true: 1", "site.yaml: a key must be text (got True)."),
    ],
)
def test_what_is_wrong_is_named_with_what_must_hold_and_what_came(text: str, problem: str) -> None:
    """File, key path, what must hold, what came, and the near miss."""
    assert problems(text) == [problem]


def test_every_problem_is_reported_at_once() -> None:
    """Nobody mends a file one message at a time."""
    text = "series: {identity: x}\nscrape_interval: 0s\nrun: {world_size: -1}\nshoes: 2\ngrafana: {url: ftp://x}"
    assert [line.split(": ")[1] for line in problems(text)] == [
        "grafana.url",
        "run.world_size",
        "scrape_interval",
        "series.identity",
        "shoes",
    ]


def test_nothing_of_a_site_changes_after_it_is_read() -> None:
    """Settings are values."""
    with pytest.raises(ValueError, match="frozen"):
        Site().scrape_interval = "1m"  # type: ignore[misc]
