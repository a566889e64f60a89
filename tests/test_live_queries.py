"""Every query, against a real Prometheus that real emitters feed."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import tool
from live import PRODUCTIVE_SHARE, SAVED_AGO_S, SPREAD, Asked, exporting, panels, renamed, scrape, site_bundle

from dashboards.ids import RunPanel
from dashboards.scope import spellings
from emitter import catalog
from emitter.catalog import Metric
from provisioning.bundle import Bundle
from provisioning.stack.prometheus import Prometheus, free_port
from provisioning.targets import prometheus as rules

pytestmark = pytest.mark.live

CHECKOUT = Path(__file__).parent.parent

ONLY_IN_TROUBLE = {RunPanel.FIRING_ALERTS}
"""Panels that are empty while nothing is wrong."""

NOT_IN_THE_DEMO = {
    *(RunPanel.TOKENS_PER_NODE, RunPanel.SPAN_TIME),
    *(RunPanel.SINCE_CHECKPOINT, RunPanel.LAST_CHECKPOINT, RunPanel.CHECKPOINT_TIME),
    *(RunPanel.VALIDATION_LOSS, RunPanel.LOSS_MAX, RunPanel.MFU, RunPanel.MEMORY_SHARE, RunPanel.MEMORY_ERRORS),
    *(RunPanel.DATA_LOADING_SHARE, RunPanel.DATA_LOADING_TIME),
}
"""Panels of what the demo's log does not say."""

ODD_IDS = (
    "a.b+c",
    'x"} or vector(1) #',
    "50% $HOME $window",
    "r" * 200,
    "实验-1",
    "two\nlines",
    "p|q\\d,{{r}}",
    "`back`tick",
)

LOG_SPEED = 3
"""The demo's log in 72 s: the subqueries of some panels look once a minute."""

EVERYTHING = site_bundle()
(BOARD,) = EVERYTHING.dashboards
PANELS = {panel.id: panel for panel in panels(BOARD)}


def bare(metric: Metric, part: str) -> str:
    return spellings(metric, part)[0]


def suffixed(metric: Metric, part: str) -> str:
    return [name for name in spellings(metric, part) if "." not in name][-1]


@dataclass
class Stage:
    """Servers with runs under way, for all tests of this file."""

    asked: Asked
    """Every run with the run id as a label."""
    joined: Asked
    """Runs r1 and r2 with the run id on target_info alone."""
    odd: set[str]
    """The odd run ids as the emitter cleaned them."""
    switch: Callable[[], None]
    """Rename every series of the run `switch`."""


def rule_files(everything: Bundle, folder: Path) -> list[Path]:
    folder.mkdir()
    files = []
    for path, text in rules.render(everything).items():
        files.append(folder / Path(path).name)
        files[-1].write_text(text, encoding="utf-8")
    return files


@contextmanager
def replayed(log: Path, run: str, speed: float) -> Iterator[str]:
    """A log replayed by the emitter's command line; yields its scrape target."""
    target = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "emitter", "replay", str(log), "--to", f"scrape:{target}"]
    command += ["--speed", f"{speed:g}", "--run-id", run, "--linger", "600"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL)
    try:
        yield target
    finally:
        process.terminate()
        assert process.wait(10) == 0


def job(name: str, targets: dict[str, str], *spelled: Callable[[Metric, str], str]) -> list[dict[str, object]]:
    """Scrape jobs of the same targets, one for each spelling, that leave the same job and instance."""
    jobs = []
    for place, spell in enumerate(spelled):
        jobs.append(scrape(targets, renamed(spell), f"{name}-{place}"))
        jobs[-1]["relabel_configs"] = [{"target_label": "job", "replacement": "training"}]
    return jobs


@pytest.fixture(scope="module")
def stage(prometheus_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Everything at once, since every part of it has to run for more than a minute."""
    folder = tmp_path_factory.mktemp("stage")
    found = {name: folder / f"{name}.json" for name in ("old", "new")}
    with ExitStack() as running:
        names = ("bare", "suffixed", "both", "switch")
        targets = running.enter_context(exporting(*names, *ODD_IDS))
        log = running.enter_context(replayed(CHECKOUT / "examples" / "demo.log", "demo", LOG_SPEED))
        spelled = {name: {name: targets.pop(name)} for name in names}
        jobs = [scrape({**targets, "demo": log})]
        jobs += [*job("bare", spelled["bare"], bare), *job("suffixed", spelled["suffixed"], suffixed)]
        jobs += job("both", spelled["both"], bare, suffixed)
        for (name, file), (moving,) in zip(
            found.items(), (job(n, {}, s) for n, s in (("old", suffixed), ("new", bare))), strict=True
        ):
            file.write_text("[]")
            moving["file_sd_configs"] = [{"files": [str(file)], "refresh_interval": "1s"}]
            jobs.append({**moving, "job_name": name, "static_configs": []})
        address = spelled["switch"]["switch"]

        def at(name: str) -> None:
            for other, file in found.items():
                file.write_text(f'[{{"targets": ["{address}"]}}]' if other == name else "[]")

        at("old")
        asked = _server(running, prometheus_binary, EVERYTHING, folder / "rules", jobs)
        without = {
            "source_labels": ["__name__", "nemo_run_id"],
            "regex": "megatron.*;.*",
            "target_label": "nemo_run_id",
        }
        others = running.enter_context(exporting("r1", "r2"))
        joined_site = site_bundle("series: {identity: target_info}")
        joined_jobs = [scrape(others, [{**without, "replacement": ""}])]
        joined = _server(running, prometheus_binary, joined_site, folder / "joined", joined_jobs)
        asked.until(lambda: asked.panel(PANELS[RunPanel.SINCE_PROGRESS], "switch"), seconds=120)
        asked.until(lambda: "LossNonFinite" in asked.firing(), seconds=180)  # its NaN comes after a minute
        yield Stage(asked=asked, joined=joined, odd=set(targets), switch=lambda: at("new"))


def _server(
    running: ExitStack, binary: Path, everything: Bundle, rules_in: Path, jobs: list[dict[str, object]]
) -> Asked:
    files = rule_files(everything, rules_in)
    return Asked(running.enter_context(Prometheus(binary, rule_files=files, config={"scrape_configs": jobs})).url)


def empty(asked: Asked, run: str, bundle: Bundle = EVERYTHING) -> set[int]:
    """The panels that show nothing of a run."""
    return {panel.id for panel in panels(bundle.dashboards[0]) if not asked.panel(panel, run)}


def sick_rules(asked: Asked) -> list[tuple[str, str]]:
    """Rules that were evaluated with an error."""
    asked.until(lambda: all(rule["health"] != "unknown" for rule in asked.rules()))
    return [(rule["name"], rule.get("lastError", "")) for rule in asked.rules() if rule["health"] != "ok"]


def test_a_replayed_log_fills_every_panel_that_it_has_the_numbers_for(stage: Stage) -> None:
    """The demo's log, through the emitter, a scrape and the rules: only what the log does not say stays empty."""
    assert empty(stage.asked, "demo") == NOT_IN_THE_DEMO
    assert {alert["metric"]["run"] for alert in stage.asked.query('ALERTS{alertname!="Watchdog"}')} == {"demo"}


def test_the_median_step_time_lies_in_the_bucket_of_the_steps(stage: Stage) -> None:
    """Buckets below the first observation count: 1.1 s steps are not read as half of that."""
    p50, p95 = sorted(float(s["value"][1]) for s in stage.asked.panel(PANELS[RunPanel.STEP_TIME_QUANTILES], "bare"))
    assert 1000 < p50 < p95 <= 1250


@pytest.mark.parametrize("run", ["bare", "suffixed", "both"])
def test_every_panel_has_data_under_every_spelling(run: str, stage: Stage) -> None:
    """Whatever a pipeline appends to names, and also when two pipelines disagree, each query finds its series."""
    assert empty(stage.asked, run) == ONLY_IN_TROUBLE
    (mean,) = stage.asked.panel(PANELS[RunPanel.STEP_TIME], run)
    assert float(mean["value"][1]) == pytest.approx(1100, rel=0.01)


@pytest.mark.parametrize("run", ["bare", "suffixed", "both"])
def test_numbers_are_what_was_exported_under_every_spelling(run: str, stage: Stage) -> None:
    """Means, shares, ratios and differences come out right, whatever the names."""

    def shown(panel: RunPanel) -> list[float]:
        return sorted(float(series["value"][1]) for series in stage.asked.panel(PANELS[panel], run))

    assert shown(RunPanel.CHECKPOINT_TIME) == pytest.approx([42, 43, 44])
    assert shown(RunPanel.GOODPUT) == pytest.approx([PRODUCTIVE_SHARE], abs=0.01)
    shares = shown(RunPanel.TIME_SHARES)
    assert len(shares) == len(catalog.RUN_TIME_BUCKETS)
    assert sum(shares) == pytest.approx(1, abs=0.01)
    assert shown(RunPanel.PHASE_SPREAD) == [SPREAD, SPREAD]
    assert shown(RunPanel.TOKENS_PER_NODE) == [1e9 * 86_400 / 1e9 / 8]
    (since,) = shown(RunPanel.SINCE_CHECKPOINT)
    assert SAVED_AGO_S - 90 < since < SAVED_AGO_S + 30  # signs of life are known to the minute


def test_every_expression_is_evaluated_without_error(stage: Stage) -> None:
    """Panels, variables, and rules in both of their forms, with every spelling and every odd run id about."""
    assert stage.asked.evaluate_all(EVERYTHING) > 50
    assert sick_rules(stage.asked) == []


def test_each_panel_shows_the_chosen_run_and_no_other(stage: Stage) -> None:
    """However odd the ids, a board shows what was chosen: all of its panels, and nothing of the other runs."""
    assert len(stage.odd) == len(ODD_IDS)
    assert not any(re.search(r"[`\n]", run) for run in stage.odd)
    for run in stage.odd:
        for panel in PANELS.values():
            shown = stage.asked.panel(panel, run)
            assert {series["metric"].get("nemo_run_id", run) for series in shown} <= {run}, (run, panel.title)
            assert shown or panel.id in ONLY_IN_TROUBLE, (run, panel.title)


def test_the_run_variable_lists_every_run(stage: Stage) -> None:
    """What cannot be chosen cannot be looked at."""
    (choices,) = [variable for variable in BOARD.variables if variable.name == "run"]
    listed = stage.asked.query(str(choices.expr).replace("$__range", "1h"))
    names = {series["metric"]["nemo_run_id"] for series in listed}
    assert names == {*stage.odd, "bare", "suffixed", "both", "switch", "demo"}


@pytest.mark.parametrize("nobody", [".*", "bar", "bare|both", "BARE", ""])
def test_an_unknown_run_shows_nothing(nobody: str, stage: Stage) -> None:
    """A board for an id that nobody exported is empty, not a board of everything."""
    assert empty(stage.asked, nobody) == set(PANELS)


def test_the_run_id_may_be_on_target_info_alone(stage: Stage) -> None:
    """A pipeline that keeps resource attributes on target_info: every panel and rule joins it."""
    everything = site_bundle("series: {identity: target_info}")
    assert stage.joined.query('{__name__="megatron_training_loss",nemo_run_id!=""}') == []
    for run in ("r1", "r2"):
        for panel in panels(everything.dashboards[0]):
            shown = stage.joined.panel(panel, run)
            assert {series["metric"].get("nemo_run_id", run) for series in shown} <= {run}, panel.title
        assert empty(stage.joined, run, everything) == ONLY_IN_TROUBLE
    assert stage.joined.evaluate_all(everything) > 50
    assert sick_rules(stage.joined) == []


def test_a_switch_of_the_spelling_in_mid_run_is_silent_and_correct(stage: Stage) -> None:
    """An upgraded pipeline renames everything: no alert, no hole, and the step time stays what it is."""
    asked = stage.asked
    stage.switch()
    asked.until(lambda: asked.query('{__name__="megatron_training_step_duration_ms_count",nemo_run_id="switch"}'))
    for _ in range(16):
        (mean,) = asked.panel(PANELS[RunPanel.STEP_TIME], "switch")
        assert float(mean["value"][1]) == pytest.approx(1100, rel=0.01)
        assert empty(asked, "switch") == ONLY_IN_TROUBLE
        assert asked.query('ALERTS{run="switch"}') == []
        time.sleep(0.5)
    old = '{__name__="megatron_training_step_duration_ms_milliseconds_count",nemo_run_id="switch"}'
    assert asked.query(old) == []
    assert sick_rules(asked) == []


def test_every_panel_has_data_under_dotted_names(prometheus3: Path, tmp_path: Path) -> None:
    """OTLP through a collector that keeps the dots, into Prometheus 3, with the site's label set to nemo.run.id."""
    everything = site_bundle('series: {run_label: "nemo.run.id"}')
    vmagent = tool("vmagent", "sid")
    port = free_port()
    with ExitStack() as running:
        files, flags = rule_files(everything, tmp_path / "rules"), ["--web.enable-remote-write-receiver"]
        server = running.enter_context(Prometheus(prometheus3, rule_files=files, flags=flags))
        command = [str(vmagent), f"-httpListenAddr=127.0.0.1:{port}", f"-remoteWrite.url={server.url}/api/v1/write"]
        command += [f"-remoteWrite.tmpDataPath={tmp_path / 'vmagent'}", "-remoteWrite.flushInterval=500ms"]
        agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running.callback(agent.wait, 10)
        running.callback(agent.terminate)
        running.enter_context(exporting("r1", to=f"otlp:http://127.0.0.1:{port}/opentelemetry/v1/metrics"))
        asked = Asked(server.url)
        since_progress = everything.dashboards[0].panels[1]
        assert since_progress.id == RunPanel.SINCE_PROGRESS
        asked.until(lambda: asked.panel(since_progress, "r1"), seconds=120)
        assert empty(asked, "r1", everything) == ONLY_IN_TROUBLE
        assert asked.evaluate_all(everything) > 50
        assert sick_rules(asked) == []
        assert asked.query('{__name__="megatron.training.loss"}')[0]["metric"]["nemo.run.id"] == "r1"
        assert asked.query('{__name__=~"megatron_.*"}') == []
