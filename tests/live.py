"""What the live tests share: runs that export everything, and a Prometheus that is asked as Grafana asks it."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from grafana_vars import interpolate

from dashboards.dashboard import Dashboard, Panel
from dashboards.scope import spellings
from emitter import catalog, record, start
from emitter.catalog import Kind, Metric
from provisioning import bundle
from provisioning.bundle import Bundle
from provisioning.expressions import expressions
from provisioning.site import parse

BEAT_S = 0.4
"""Log interval of the live runs."""

ATTRIBUTES: Mapping[Metric, Sequence[Mapping[str, str]]] = {
    catalog.NONFINITE: [{"signal": signal} for signal in catalog.SIGNALS],
    catalog.RUN_PHASE: [{"phase": phase} for phase in catalog.PHASES],
    catalog.RUN_TIME: [{"bucket": bucket} for bucket in catalog.RUN_TIME_BUCKETS],
    catalog.TIMER_DURATION: [
        {"phase": phase, "agg": agg} for phase in ("forward-backward", "optimizer") for agg in ("min", "max")
    ],
    catalog.SPAN_DURATION: [{"span": "megatron.train_step", "group": "step"}],
}

STEADY: Mapping[Metric, float] = {
    catalog.STEP_DURATION: 1100.0,
    catalog.TARGET_ITERATION: 100_000.0,
    catalog.NONFINITE: 0.0,
    catalog.SKIPPED_ITERS: 0.0,
    catalog.WORLD_SIZE: 64.0,
    catalog.GPUS_PER_NODE: 8.0,
    catalog.TOKENS_PER_SEC: 1e9,
    catalog.CHECKPOINT_SAVE_DURATION: 42.0,
    catalog.CHECKPOINT_LOAD_DURATION: 43.0,
    catalog.EVALUATION_DURATION: 44.0,
}
"""What does not count the steps."""

SAVED_AGO_S = 600
PRODUCTIVE_SHARE = 0.5
SPREAD = 1.25
"""Slowest rank / fastest rank of every phase."""


def site_bundle(extra: str = "") -> Bundle:
    """The bundle of a site that Prometheus alerts for and scrapes every second, with more settings in `extra`."""
    text = (
        f"scrape_interval: 1s\nalerting: {{engine: prometheus, interval: 10s}}\ndashboards: {{min_window: 1m}}\n{extra}"
    )
    return bundle.collect(parse(text, "site.yaml"))


@contextmanager
def exporting(*runs: str, to: str = "scrape:0") -> Iterator[dict[str, str]]:
    """Runs that export every entry of the catalogue, log after log; yields the scrape target of each (cleaned) id."""
    with ExitStack() as running:
        exports = [running.enter_context(start(run, [to], interval_s=1)) for run in runs]
        done = threading.Event()
        beating = threading.Thread(target=_beat, args=([export.meter for export in exports], done))
        beating.start()
        running.callback(beating.join)
        running.callback(done.set)
        yield {
            export.run_id: f"{export.addresses[0][0]}:{export.addresses[0][1]}" if export.addresses else ""
            for export in exports
        }


def _beat(meters: Sequence[Any], done: threading.Event) -> None:
    step = 0
    while not done.wait(BEAT_S):
        step += 1
        for meter in meters:
            for metric in catalog.METRICS:
                for attributes in ATTRIBUTES.get(metric, [dict.fromkeys(metric.attributes, "x")]):
                    value = _value(metric, attributes, step)
                    record(meter, metric, value, attributes)


def _value(metric: Metric, attributes: Mapping[str, str], step: int) -> float:
    if metric in STEADY:
        return STEADY[metric]
    if metric is catalog.RUN_PHASE:
        return float(attributes["phase"] == "train")
    if metric is catalog.RUN_TIME:
        others = len(catalog.RUN_TIME_BUCKETS) - 1
        return PRODUCTIVE_SHARE if attributes["bucket"] == "productive" else (1 - PRODUCTIVE_SHARE) / others
    if metric is catalog.TIMER_DURATION:
        return SPREAD if attributes["agg"] == "max" else 1.0
    if metric is catalog.CHECKPOINT_LAST_SUCCESS_TIME:
        return time.time() - SAVED_AGO_S
    return float(step) if metric.kind is not Kind.COUNTER else 1.0


def scrape(
    targets: Mapping[str, str], relabel: Sequence[Mapping[str, Any]] = (), job: str = "training"
) -> dict[str, Any]:
    """A scrape job of these targets, with rules that rename what arrives."""
    return {
        "job_name": job,
        "static_configs": [{"targets": list(targets.values())}],
        "metric_relabel_configs": list(relabel),
    }


def renamed(spell: Callable[[Metric, str], str]) -> list[dict[str, str]]:
    """Relabeling that gives every metric the name that `spell` chooses, whatever it is called on arrival."""
    rules = []
    for metric in catalog.METRICS:
        for part in ("bucket", "sum", "count") if metric.kind is Kind.HISTOGRAM else ("",):
            for name in spellings(metric, part):
                if "." not in name and name != spell(metric, part):
                    rules.append(
                        {
                            "source_labels": ["__name__"],
                            "regex": name,
                            "target_label": "__name__",
                            "replacement": spell(metric, part),
                        }
                    )
    return rules


class Asked:
    """A Prometheus and what it answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query; an error is an AssertionError with Prometheus' words."""
        return self._get("query", {"query": text})["result"]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self._get("rules", {})["groups"] for rule in group["rules"]]

    def firing(self) -> set[str]:
        """Names of the alerts that fire, but for the one that always does."""
        return {series["metric"]["alertname"] for series in self.query('ALERTS{alertstate="firing"}')} - {"Watchdog"}

    def _get(self, what: str, parameters: Mapping[str, str]) -> Any:
        data = urllib.parse.urlencode(parameters).encode() if parameters else None
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{what}", data=data, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()[:500]}") from None

    def until(self, holds: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it did not happen in time"
            time.sleep(0.2)

    def panel(self, panel: Panel, run: str) -> list[dict[str, Any]]:
        """The series of every query of a panel, for one chosen run."""
        return [
            series
            for query in panel.queries
            for series in self.query(interpolate(str(query.expr), run, window="1m", scrape_s=1))
        ]

    def evaluate_all(self, everything: Bundle) -> int:
        """Evaluate every expression of panels, variables and rules; how many there were."""
        texts = {expression.text for expression in expressions(everything)}
        for text in sorted(texts):
            self.query(text)
        return len(texts)


def panels(board: Dashboard) -> list[Panel]:
    """The panels that ask a Prometheus."""
    return [panel for panel in board.panels if panel.queries]
