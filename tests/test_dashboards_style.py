"""House look: what every panel and variable has in common."""

from __future__ import annotations

import re
from typing import Any

import grafana_vars
import pytest

from dashboards import palette, style
from dashboards.dashboard import Dashboard, Panel, Place, Row, Variable
from dashboards.ids import RunPanel
from dashboards.promql import Expr
from dashboards.queries import learning
from emitter import catalog
from provisioning import bundle
from provisioning.site import parse
from provisioning.targets import grafana

SCOPE = parse("", "site.yaml").panel_scope
HOSTILE = ('x"} or vector(1) #', "a.b+c", r"p|q\d,{{r}}", "50% (lr=3e-4) $HOME", "实验-1", "a/b")


def panels(settings: str = "") -> list[dict[str, Any]]:
    """Every panel of every dashboard, as Grafana gets it, those of folded rows included."""
    boards = bundle.collect(parse(settings, "site.yaml")).dashboards
    items = [item for board in boards for item in grafana.board_json(board)["panels"]]
    return [panel for item in items for panel in (item["panels"] if item["type"] == "row" else [item])]


def variable(name: str, settings: str = "") -> tuple[Variable, dict[str, Any]]:
    """A variable, and the JSON of it."""
    board = bundle.collect(parse(settings, "site.yaml")).dashboards[0]
    (drawn,) = (item for item in grafana.board_json(board)["templating"]["list"] if item["name"] == name)
    (built,) = (item for item in board.variables if item.name == name)
    return built, drawn


def stat(**look: Any) -> Panel:
    """A stat that shows the loss."""
    given: dict[str, Any] = {
        "id": RunPanel.LOSS,
        "title": "Loss",
        "description": "Falls.",
        "unit": "none",
        "queries": (style.now(SCOPE, Expr("loss")),),
        "needs": (catalog.LOSS,),
        "no_value": "none",
    }
    return style.stat(**{**given, **look})


def test_an_empty_stat_is_not_green() -> None:
    """Grafana paints a stat without data in the base color of its thresholds."""
    stats = [panel for panel in panels() if panel["type"] == "stat"]
    assert stats
    for panel in stats:
        base = panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]
        assert base["color"] in (palette.GREY, palette.TEXT)
        assert base["value"] is None
        assert panel["fieldConfig"]["defaults"]["noValue"]


def test_an_empty_chart_says_why() -> None:
    """What an emitter does not send is not taken for a broken board."""
    charts = [panel for panel in panels() if panel["type"] == "timeseries"]
    assert charts
    assert not [panel["title"] for panel in charts if not panel["fieldConfig"]["defaults"]["noValue"]]


def test_shares_are_stacked_in_the_colors_of_their_purposes() -> None:
    """Training is green and at the bottom; every bucket of the catalog has a color of its own."""
    (panel,) = (panel for panel in panels() if panel["id"] == RunPanel.TIME_SHARES)
    assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    colors = {
        bucket: item["properties"][0]["value"]["fixedColor"]
        for item in panel["fieldConfig"]["overrides"]
        for bucket in catalog.RUN_TIME_BUCKETS
        if re.search(item["matcher"]["options"].strip("/"), f"{bucket} · run-1")
    }
    assert set(colors) == set(catalog.RUN_TIME_BUCKETS)
    assert len(set(colors.values())) == len(colors)
    assert colors["productive"] == palette.GREEN
    assert 'bucket="productive"' in panel["targets"][0]["expr"]


def test_a_number_that_is_not_finite_is_red() -> None:
    """NaN and Inf are mapped by value: `special: nan` would hit holes as well."""
    (mapping,) = stat().drawing.mappings
    assert mapping["type"] == "value"
    assert {key: option["color"] for key, option in mapping["options"].items()} == {"NaN": "red", "Infinity": "red"}


def test_a_verdict_has_a_background_and_a_number_has_none() -> None:
    """Only what is good or bad is painted."""
    assert stat().drawing.colorMode == "value"
    assert stat(queries=(style.now(SCOPE, Expr("loss"), role="bad"),)).drawing.colorMode == "background"


def test_several_runs_are_told_apart_in_a_stat() -> None:
    """Prometheus answers instant queries in any order: each tile carries its run as soon as there are two."""
    stats = [panel for panel in panels() if panel["type"] == "stat"]
    for panel in stats:
        assert panel["options"]["textMode"] == "auto"
        assert {target["legendFormat"] for target in panel["targets"]} == {"{{nemo_run_id}}"}


def test_every_query_names_the_chosen_data_source() -> None:
    """Panel and query both, so that no default steps in."""
    asking = [panel for panel in panels() if "targets" in panel]
    assert len(asking) > 10
    for panel in asking:
        assert panel["datasource"] == style.DATASOURCE
        assert all(target["datasource"] == style.DATASOURCE for target in panel["targets"])
        assert all(target["range"] is not target["instant"] for target in panel["targets"])


def test_lines_are_named_by_the_run() -> None:
    """Two chosen runs can be told apart in every chart."""
    for panel in panels("series: {run_label: nemo.run.id}"):
        if panel["type"] in ("timeseries", "state-timeline"):
            assert all("{{nemo_run_id}}" in target["legendFormat"] for target in panel["targets"])


def test_an_unknown_unit_is_refused_with_the_near_miss() -> None:
    """A unit that Grafana would print as text is a mistake of ours."""
    with pytest.raises(ValueError, match=r"no unit 'milisecond' \(did you mean 'milliseconds'\?\)"):
        stat(unit="milisecond")


@pytest.mark.parametrize("field", ["title", "description"])
def test_a_panel_without_a_text_is_refused(field: str) -> None:
    """A panel that does not say what it is cannot be built."""
    with pytest.raises(ValueError, match=f"must have a {field}"):
        stat(**{field: " "})


@pytest.mark.parametrize("width", [0, 25])
def test_a_panel_must_fit_the_grid(width: int) -> None:
    """A width that Grafana would cut is refused."""
    with pytest.raises(ValueError, match="1 to 24 wide"):
        stat(width=width)


def test_panels_flow_into_lines_and_a_collapsed_row_takes_one() -> None:
    """A full line begins the next, below its tallest panel; what is folded away takes no place."""
    tall, low = stat(width=12, height=9), stat(width=16, height=4)
    rows = (Row(title="Folded", panels=(tall,), collapsed=True), Row(title="Open", panels=(tall, low)))
    board = Dashboard(uid="x", title="X", description="X.", variables=(), rows=rows)
    assert [place for _, place in board.places()] == [
        Place(x=0, y=0, width=24, height=1),
        Place(x=0, y=1, width=12, height=9),
        Place(x=0, y=1, width=24, height=1),
        Place(x=0, y=2, width=12, height=9),
        Place(x=0, y=11, width=16, height=4),
    ]
    first, second, *_ = (panel for panel in grafana.board_json(board)["panels"])
    assert [child["id"] for child in first["panels"]] == [int(RunPanel.LOSS)]
    assert (second["title"], second["panels"]) == ("Open", [])


@pytest.mark.parametrize("run", HOSTILE)
def test_the_run_variable_reads_every_id(run: str) -> None:
    """Whatever an id contains, the whole of it is offered; Grafana prints results unescaped."""
    _, drawn = variable("run")
    pattern = re.compile(drawn["regex"].strip("/"))
    found = pattern.search(f'{{nemo_run_id="{run}"}} 2980000.1 1790000000000')
    assert found
    assert found[1] == run


def test_the_run_variable_follows_the_time_range() -> None:
    """Ended runs of the range can be chosen; the order is the query's; there is no All on a page about one run."""
    built, drawn = variable("run")
    assert drawn["query"]["query"] == f"query_result({built.expr})" == drawn["definition"]
    assert "$__range" in str(built.expr)
    assert (drawn["refresh"], drawn["sort"], drawn["multi"], drawn["includeAll"]) == (2, 0, True, False)
    assert drawn["current"] == {"selected": False, "text": "", "value": ""}


def test_a_further_label_filters_every_panel_and_may_be_missing() -> None:
    """All is inserted as `.*`, which also takes the series that lack the label."""
    settings = "series: {labels: [cluster, k8s.namespace]}"
    _, drawn = variable("k8s_namespace", settings)
    assert (drawn["includeAll"], drawn["multi"], drawn["allValue"]) == (True, True, grafana_vars.ALL_VALUE)
    assert drawn["current"] == {"selected": True, "text": ["All"], "value": ["$__all"]}
    scope = parse(settings, "site.yaml").panel_scope
    asked = grafana_vars.interpolate(str(learning.loss(scope)), "r1", cluster="eu", k8s_namespace=grafana_vars.ALL)
    assert 'nemo_run_id=~`r1`,cluster=~`eu`,"k8s.namespace"=~`.*`' in asked


def test_no_variable_filters_ad_hoc() -> None:
    """Grafana's ad hoc filters break every selector that has a backtick string."""
    names = [item.name for item in bundle.collect(parse("series: {labels: [a]}", "site.yaml")).dashboards[0].variables]
    assert names == ["datasource", "a", "run", "window"]
    assert variable("datasource")[1]["type"] == "datasource"


def test_the_window_is_never_shorter_than_the_site_allows() -> None:
    """A site that logs every 17 minutes sets 52m and has no gaps."""
    _, drawn = variable("window", "dashboards: {min_window: 52m}")
    assert (drawn["auto"], drawn["auto_min"]) == (True, "52m")
    assert drawn["current"] == {"selected": True, "text": "auto", "value": "$__auto_interval_window"}


def test_a_board_opens_with_the_data_source_of_the_site() -> None:
    """By name: what a value is differs between versions of Grafana."""
    _, drawn = variable("datasource", "grafana: {datasource: {name: Mimir}}")
    assert drawn["current"]["text"] == "Mimir"


@pytest.mark.parametrize("engine", ["grafana", "prometheus"])
def test_alerts_are_filtered_by_the_chosen_run(engine: str) -> None:
    """A list of everybody's alerts would be noise at 3 am."""
    (panel,) = (item for item in panels(f"alerting: {{engine: {engine}}}") if item["title"] == "Firing alerts")
    if engine == "grafana":
        assert panel["options"]["alertInstanceLabelFilter"] == '{run=~"^${run:regex}$"}'
        assert panel["options"]["folder"]["title"] == "Training alerts"
    else:
        assert "run=~`${run:regex}`" in panel["targets"][0]["expr"]
