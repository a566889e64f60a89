"""`training-run`, the page to open at 3 am."""

from __future__ import annotations

import re

import pytest

from dashboards import ids, palette, signals
from dashboards.dashboard import COLUMNS, Dashboard, Panel
from dashboards.ids import RunPanel
from dashboards.queries import progress, speed
from dashboards.registry import DASHBOARDS
from dashboards.state import State
from provisioning import bundle
from provisioning.site import parse

PROMETHEUS = "alerting: {engine: prometheus}"


def board(settings: str = "") -> Dashboard:
    """The run dashboard of a site."""
    (found,) = (item for item in bundle.collect(parse(settings, "site.yaml")).dashboards if item.uid == ids.RUN)
    return found


def panel(number: RunPanel, settings: str = "") -> Panel:
    """One of its panels."""
    (found,) = (item for item in board(settings).panels if item.id is number)
    return found


def test_the_verdict_comes_first() -> None:
    """On a telephone panels stack in this order: state, time since progress, then the rest."""
    first = [item.id for item in board().rows[0].panels]
    assert first[:6] == [
        RunPanel.STATE,
        RunPanel.SINCE_PROGRESS,
        RunPanel.ITERATION,
        RunPanel.TARGET_ITERATION,
        RunPanel.ETA,
        RunPanel.GPUS,
    ]
    assert RunPanel.FIRING_ALERTS in first


def test_what_only_some_emitters_send_is_folded() -> None:
    """Rows that are empty for most runs send no query and take one line, below everything else."""
    folded = [row.collapsed for row in board().rows]
    assert folded == sorted(folded)
    numbers = {panel.id for row in board().rows if row.collapsed for panel in row.panels}
    assert numbers == {
        *(RunPanel.PHASE_TIME, RunPanel.PHASE_SPREAD, RunPanel.SPAN_TIME),
        *(RunPanel.DATA_LOADING_SHARE, RunPanel.DATA_LOADING_TIME, RunPanel.MFU),
        *(RunPanel.LOSS_MAX, RunPanel.MEMORY_SHARE, RunPanel.MEMORY_ERRORS),
    }


@pytest.mark.parametrize("item", board().panels, ids=lambda item: item.title)
def test_each_description_is_one_sentence(item: Panel) -> None:
    """A panel says how to read it, once."""
    assert re.fullmatch(r"[A-Z].*[^.]\.", item.description)
    assert not re.search(r"\.\s+[A-Z]", item.description)


def test_every_line_of_panels_fills_the_grid() -> None:
    """No gap at the right: a wide screen is used."""
    lines: dict[int, int] = {}
    for item, place in board().places():
        if isinstance(item, Panel):
            lines[place.y] = lines.get(place.y, 0) + place.width
    assert set(lines.values()) == {COLUMNS}


def test_every_state_has_a_word_and_a_color() -> None:
    """Whatever code the state query returns is shown as a word."""
    (query,) = panel(RunPanel.STATE).queries
    returned = {state for state in State if f"* 0 + {int(state)}" in str(query.expr)}
    assert returned == set(palette.STATES) == set(State)
    assert len({text for text, _ in palette.STATES.values()}) == len(palette.STATES)


def test_since_progress_is_red_exactly_when_the_alert_is_true() -> None:
    """The panel and TrainingHung ask one query; green is what else is alive, gray what is not."""
    good, bad, gray = panel(RunPanel.SINCE_PROGRESS).queries
    scope = parse("", "site.yaml").panel_scope
    assert (good.role, bad.role, gray.role) == ("good", "bad", "value")
    assert bad.expr == progress.hung(scope)
    assert good.expr == progress.silence(scope).and_(signals.alive(scope)).unless(progress.hung(scope))
    assert gray.expr == progress.silence(scope).unless(signals.alive(scope))


def test_the_limit_of_the_throughput_alert_is_drawn() -> None:
    """The dashed line is the alert's own limit."""
    roles = {query.role: query.expr for query in panel(RunPanel.TOKENS_PER_SECOND).queries}
    assert roles["limit"] == speed.tokens_per_second_floor(parse("", "site.yaml").panel_scope)


def test_firing_alerts_come_from_whoever_evaluates_the_rules() -> None:
    """Grafana lists its own alerts; those of Prometheus are series."""
    assert not panel(RunPanel.FIRING_ALERTS).queries
    (query,) = panel(RunPanel.FIRING_ALERTS, PROMETHEUS).queries
    assert str(query.expr).count("ALERTS{") == 1
    assert query.table
    assert query.instant


def test_the_gpus_of_the_site_stand_in_for_what_is_not_exported() -> None:
    """With run.world_size, speed per GPU is drawn for unmodified Megatron-LM too."""
    for number in (RunPanel.GPUS, RunPanel.TOKENS_PER_GPU):
        assert "4096" not in str(panel(number).queries[0].expr)
        assert "4096" in str(panel(number, "run: {world_size: 4096}").queries[0].expr)


def test_an_ended_run_keeps_its_iteration() -> None:
    """What a run said last is remembered over the whole time range; what it says now comes first."""
    for number in (RunPanel.ITERATION, RunPanel.TARGET_ITERATION, RunPanel.GPUS, RunPanel.LAST_CHECKPOINT):
        (query,) = panel(number).queries
        now, _, before = str(query.expr).partition(" or ")
        assert "_over_time" not in now
        assert re.search(r"last_over_time\(.*\[\$__range\]", before)


def test_no_axis_rounds_its_numbers_away() -> None:
    """Grafana 9.4 writes the words for "no value" beside each tick that whole numbers cannot name."""
    for item in board().panels:
        drawn = item.drawing.to_json_data()
        assert drawn["type"] != "timeseries" or drawn["fieldConfig"]["defaults"].get("decimals") != 0, item.title


def test_lines_are_ranges_and_big_numbers_are_instant() -> None:
    """A stat asks for one moment, a chart for all."""
    for item in board(PROMETHEUS).panels:
        kind = item.drawing.to_json_data()["type"]
        assert {query.instant for query in item.queries} == {kind in ("stat", "table")}


def test_the_registry_lists_every_dashboard_file() -> None:
    """One dashboard a file, all of them registered."""
    modules = [build.__module__ for build in DASHBOARDS]
    built = [build.uid for build in bundle.collect(parse("", "site.yaml")).dashboards]
    assert built == [f"training-{module.removeprefix('dashboards.')}" for module in modules]
    assert len(set(modules)) == len(modules)
