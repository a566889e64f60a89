"""What fires when on simulated runs, by the rules as they are rendered: in promtool, and as Grafana asks Prometheus."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from simulation import SCRAPE_S, Process, openmetrics, promtool_series

from alerts.registry import RULE_GROUPS
from provisioning.bundle import Bundle
from provisioning.errors import ProvisioningError
from provisioning.site import parse
from provisioning.stack.prometheus import Prometheus, promtool
from provisioning.targets import grafana_alerts
from provisioning.targets import prometheus as prometheus_rules

STEP_S = 60
"""The rules' interval, and the time between two looks."""

CHUNK = 6
"""Runs that one test of promtool takes: its engine refuses a query over 10,000 samples."""


@dataclass(frozen=True, kw_only=True)
class Firing:
    """One alert of one run. Times are seconds since the simulation began."""

    alert: str
    run: str
    severity: str
    labels: tuple[tuple[str, str], ...]
    first: int
    last: int
    looks: int
    """At how many looks it fired."""

    @property
    def gaps(self) -> int:
        """At how many looks between the first and the last it was silent."""
        return (self.last - self.first) // STEP_S + 1 - self.looks


def rules_of(settings: str = "") -> Bundle:
    """The rules of a site with these settings."""
    return Bundle(site=parse(settings, "site.yaml"), dashboards=(), rule_groups=RULE_GROUPS)


def rule_files(bundle: Bundle) -> dict[str, str]:
    """The rendered Prometheus rules by file name, recording rules first."""
    return {Path(path).name: text for path, text in prometheus_rules.render(bundle).items()}


def grafana_rules(bundle: Bundle) -> dict[str, dict[str, Any]]:
    """The rendered Grafana rules by name."""
    files = [yaml.safe_load(text) for text in grafana_alerts.render(bundle).values()]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return {rule["title"]: rule for rule in rules}


def query_of(rule: dict[str, Any]) -> str:
    """What a Grafana rule asks the data source."""
    (query,) = (query["model"]["expr"] for query in rule["data"] if query["refId"] == rule["data"][0]["refId"])
    return str(query)


# --- Prometheus' own rules, in promtool -----------------------------------------------------------------------------

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_FIRING = 'ALERTS{alertstate="firing",alertname!="Watchdog"}'


def _question(until: int) -> str:
    """First and last moment and number of looks of every firing alert, as one vector."""
    times = f"({_FIRING} * 0 + time())[{until}s:{STEP_S}s]"
    asked = {
        "first": f"min_over_time({times})",
        "last": f"max_over_time({times})",
        "looks": f"count_over_time({_FIRING}[{until + 1}s])",
    }
    return " or ".join(f'label_replace({expr}, "asked", "{what}", "", "")' for what, expr in asked.items())


def in_promtool(binary: Path, bundle: Bundle, processes: Sequence[Process], until: int) -> list[Firing]:
    """What the rendered recording and alerting rules fire.

    Raises: ProvisioningError, with what promtool said, if a rule cannot be evaluated.
    """
    return _in_promtool(binary, rule_files(bundle), processes, until)


def in_place_in_promtool(binary: Path, bundle: Bundle, processes: Sequence[Process], until: int) -> list[Firing]:
    """What the rendered Grafana rules fire when Prometheus evaluates them, on series that end with a marker.

    Raises: ProvisioningError, with what promtool said, if a rule cannot be evaluated.
    """
    rules = [
        {"alert": name, "expr": query_of(rule), "labels": {k: v.replace("$$", "$") for k, v in rule["labels"].items()}}
        for name, rule in grafana_rules(bundle).items()
    ]
    text = yaml.safe_dump({"groups": [{"name": "grafana", "rules": rules}]})
    return _in_promtool(binary, {"grafana.yaml": text}, processes, until)


def _in_promtool(binary: Path, files: dict[str, str], processes: Sequence[Process], until: int) -> list[Firing]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda part: _chunk_in_promtool(binary, files, part, until), _chunks(processes))
    return [firing for part in parts for firing in part]


def _chunks(processes: Sequence[Process]) -> Iterator[list[Process]]:
    runs = list(dict.fromkeys(process.run for process in processes))
    for place in range(0, len(runs), CHUNK):
        names = runs[place : place + CHUNK]
        yield [process for process in processes if process.run in names]


def _chunk_in_promtool(binary: Path, files: dict[str, str], processes: Sequence[Process], until: int) -> list[Firing]:
    # The question has an answer that cannot be, so that promtool prints the true one.
    question = {"expr": _question(until), "eval_time": f"{until}s", "exp_samples": [{"labels": "x", "value": 1}]}
    test = {
        "rule_files": list(files),
        "evaluation_interval": f"{STEP_S}s",
        "group_eval_order": [yaml.safe_load(text)["groups"][0]["name"] for text in files.values()],
        "tests": [
            {
                "interval": f"{SCRAPE_S}s",
                "input_series": promtool_series(processes, until),
                "promql_expr_test": [question],
            }
        ],
    }
    with tempfile.TemporaryDirectory(prefix="megatron-watch-rules-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        (Path(folder) / "test.json").write_text(json.dumps(test))
        try:
            promtool("test", "rules", str(Path(folder) / "test.json"), binary=binary)
        except ProvisioningError as error:
            return list(_printed(str(error)))
    raise AssertionError("promtool accepted an answer that cannot be")


def _printed(output: str) -> Iterator[Firing]:
    """The firings in what promtool prints as the answer it got."""
    answers = re.findall(r"^ *got: *(.*)$", output, re.MULTILINE)
    if len(answers) != 1 or " err: " in output:
        raise ProvisioningError(output)
    asked: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    for inside, value in re.findall(rf"\{{((?:[^{{}}\"]|{_QUOTED})*)\}} ([-+.\dE]+)", answers[0]):
        labels = {name: json.loads(text) for name, text in re.findall(rf"(\w+)=({_QUOTED})", inside)}
        what = labels.pop("asked")
        asked.setdefault(tuple(sorted(labels.items())), {})[what] = int(float(value))
    for labels, values in asked.items():
        named = dict(labels)
        yield Firing(alert=named["alertname"], run=named["run"], severity=named["severity"], labels=labels, **values)


# --- Grafana's rules, on a Prometheus with history ------------------------------------------------------------------


def history(folder: Path, processes: Iterable[Process], until: int) -> tuple[Path, int]:
    """The series of all processes as a file that a Prometheus loads, and the Unix time at which they begin."""
    begin = int(time.time() - until) // STEP_S * STEP_S - STEP_S
    file = folder / "history"
    file.write_text(openmetrics(processes, until, begin))
    return file, begin


def answer(server: Prometheus, path: str, **parameters: object) -> Any:
    """The data of an answer of Prometheus' API.

    Raises: AssertionError with what it said, if it refuses.
    """
    body = urllib.parse.urlencode(parameters).encode()
    try:
        with urllib.request.urlopen(f"{server.url}/api/v1/{path}", body or None, timeout=120) as page:
            return json.load(page)["data"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(f"{json.load(error)['error']} ({parameters})") from error


def on_prometheus(binary: Path, bundle: Bundle, processes: Sequence[Process], until: int) -> list[Firing]:
    """What the rendered Grafana rules fire, looked at once a minute."""
    with tempfile.TemporaryDirectory(prefix="megatron-watch-rules-") as folder:
        blocks, begin = history(Path(folder), processes, until)
        with Prometheus(binary, blocks=blocks) as server:
            return list(asked(server, bundle, begin, until))


def asked(server: Prometheus, bundle: Bundle, begin: int, until: int) -> Iterator[Firing]:
    """What the rendered Grafana rules fire on a server whose history begins at `begin`."""
    for name, rule in grafana_rules(bundle).items():
        if name == "Watchdog":
            continue
        assert rule["for"] == "0s", "a rule that holds fires later than it is true"
        found = answer(server, "query_range", query=query_of(rule), start=begin, end=begin + until, step=STEP_S)
        for series in found["result"]:
            times = [int(at) - begin for at, _ in series["values"]]
            labels = series["metric"]
            yield Firing(
                alert=name,
                run=labels[bundle.site.series.run],
                severity=_expanded(rule["labels"]["severity"], labels),
                labels=tuple(sorted(labels.items())),
                first=times[0],
                last=times[-1],
                looks=len(times),
            )


def _expanded(severity: str, labels: dict[str, str]) -> str:
    """The severity label, its one kind of template put in."""
    template = r'\{\{ if eq \$\$labels\.signals "yes" \}\}(\w+)\{\{ else \}\}(\w+)\{\{ end \}\}'
    chosen = re.fullmatch(template, severity)
    return chosen[1 if labels["signals"] == "yes" else 2] if chosen else severity
