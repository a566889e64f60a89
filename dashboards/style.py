"""House look: what panels and variables look like, and the colours, units and words they share.

Only this module and `provisioning/targets` import grafanalib. What its classes lack is added through `extraJson`; what
they write that Grafana no longer reads is cleared by `provisioning/targets/grafana_json.py`.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypedDict

from grafanalib import core as grafana

from dashboards import promql
from dashboards.dashboard import Panel, Query, Role, Row, Variable, View
from dashboards.promql import Expr
from dashboards.queries import alerting, choices
from dashboards.scope import Scope
from dashboards.state import State
from emitter.catalog import Metric

if TYPE_CHECKING:
    from typing_extensions import Unpack

GREY = "#6e6e6e"
TEXT = "text"
GREEN, YELLOW, ORANGE, RED, DARK_RED = "green", "yellow", "orange", "red", "dark-red"
BLUE, PURPLE = "blue", "purple"

UNITS = {
    "none": "none",
    "seconds": "s",
    "milliseconds": "ms",
    "iterations": "locale",
    "values": "locale",
    "GPUs": "locale",
    "GiB": "gbytes",
    "share": "percentunit",
    "tokens per second": "count:tokens/s",
    "TFLOP/s per GPU": "suffix:TFLOP/s",
    "scientific": "sci",
}
"""Grafana's word for each unit of the catalogue."""

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

NOT_FINITE = {
    "type": "value",
    "options": {
        "NaN": {"text": "NaN", "color": RED, "index": 0},
        "Infinity": {"text": "Inf", "color": RED, "index": 1},
    },
}
"""NaN is painted in the base colour otherwise: a diverged run would look healthy. `special: nan` hits holes as well."""

STATES = {
    State.HUNG: ("HUNG", DARK_RED),
    State.NONFINITE: ("NaN", RED),
    State.ZERO: ("ALL SKIPPED", RED),
    State.VANISHED: ("VANISHED", ORANGE),
    State.SILENT: ("silent", YELLOW),
    State.STARTUP: ("starting", BLUE),
    State.EVALUATE: ("evaluating", PURPLE),
    State.CHECKPOINT: ("checkpoint", YELLOW),
    State.TRAIN: ("training", GREEN),
    State.ENDED: ("ended", GREY),
}
"""Word and colour of each code of `state.state`."""

_ROLES: Mapping[Role, Mapping[str, Any]] = {
    "value": {},
    "good": {"color": {"mode": "fixed", "fixedColor": GREEN}},
    "bad": {"color": {"mode": "fixed", "fixedColor": RED}},
    "marks": {
        "color": {"mode": "fixed", "fixedColor": RED},
        "custom.drawStyle": "bars",
        "custom.fillOpacity": 30,
        "custom.lineWidth": 0,
        "custom.axisPlacement": "hidden",
        "min": 0,
        "max": 1,
    },
    "limit": {
        "color": {"mode": "fixed", "fixedColor": RED},
        "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
    },
}


def _unit(unit: str) -> str:
    if unit not in UNITS:
        near = difflib.get_close_matches(unit, UNITS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"dashboards.style: no unit {unit!r}{hint}.")
    return UNITS[unit]


# --- Panel queries --------------------------------------------------------------------------------------------------


def line(scope: Scope, expr: Expr, name: str = "", *, by: str = "") -> Query:
    """One line a run, named by its id; `name` says which of several lines, `by` is a label that does."""
    return _over_time(scope, expr, "value", name, by)


def marks(scope: Scope, expr: Expr, name: str) -> Query:
    """Red bars behind the lines, as high as the panel, where the expression has a value."""
    return _over_time(scope, expr, "marks", name)


def limit(scope: Scope, expr: Expr, name: str) -> Query:
    """A dashed red line: the limit of an alert, where it follows the run."""
    return _over_time(scope, expr, "limit", name)


def now(scope: Scope, expr: Expr, *, role: Role = "value") -> Query:
    """The value at the end of the time range, named by the run where several are chosen."""
    return Query(expr=expr, legend=f"{{{{{scope.run}}}}}", instant=True, role=role)


def _over_time(scope: Scope, expr: Expr, role: Role, name: str, by: str = "") -> Query:
    parts = (name, f"{{{{{by}}}}}" if by else "", f"{{{{{scope.run}}}}}")
    return Query(expr=expr, legend=" · ".join(part for part in parts if part), role=role)


# --- Panels ---------------------------------------------------------------------------------------------------------


class Content(TypedDict):
    """What a panel says, whatever it looks like."""

    id: IntEnum
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    needs: tuple[Metric, ...]


def timeseries(
    *, width: int = 12, height: int = 8, bars: bool = False, decimals: int | None = None, **content: Unpack[Content]
) -> Panel:
    """Lines over time; bars for what is counted."""
    custom = {"axisSoftMin": 0, "axisSoftMax": 1} if bars else {}  # none is drawn on an axis to 1, not to 100
    drawing = _draw(
        grafana.TimeSeries,
        content,
        unit=_unit(content["unit"]),
        valueDecimals=decimals,
        overrides=_overrides(content["queries"]),
        thresholds=[{"value": None, "color": "transparent"}],
        drawStyle="bars" if bars else "line",
        fillOpacity=60 if bars else 0,
        lineWidth=0 if bars else 1,
        showPoints="never" if bars else "auto",
        tooltipMode="multi",
        tooltipSort="desc",
        extraJson={
            "fieldConfig": {"defaults": {"custom": custom}},
            "options": {"legend": {"showLegend": True}},
        },
    )
    return Panel(**content, width=width, height=height, drawing=drawing)


def stat(
    *, no_value: str, width: int = 4, height: int = 4, decimals: int | None = None, **content: Unpack[Content]
) -> Panel:
    """One large value, on a background where its queries say what is good and what is bad."""
    verdict = any(query.role != "value" for query in content["queries"])
    drawing = _stat(content, no_value, verdict=verdict, format=_unit(content["unit"]), decimals=decimals)
    return Panel(**content, width=width, height=height, drawing=drawing)


def state(*, no_value: str, width: int = 4, height: int = 4, **content: Unpack[Content]) -> Panel:
    """The word and colour of a state's code."""
    drawing = _stat(content, no_value, verdict=True, mappings=[_states()])
    return Panel(**content, width=width, height=height, drawing=drawing)


def timeline(*, width: int = 24, height: int = 5, **content: Unpack[Content]) -> Panel:
    """One bar a run, in the colours of its states."""
    drawing = _draw(
        grafana.StateTimeline,
        content,
        colorMode="palette-classic",  # with thresholds, the colours of mappings are ignored
        fillOpacity=80,
        rowHeight=0.8,
        showValue="never",
        mappings=[_states()],
        thresholds=[{"value": None, "color": GREY}],
        extraJson={"options": {"legend": {"calcs": [], "showLegend": True}, "tooltip": {"sort": "none"}}},
    )
    return Panel(**content, width=width, height=height, drawing=drawing)


def table(
    *, columns: Mapping[str, str], no_value: str, width: int = 12, height: int = 6, **content: Unpack[Content]
) -> Panel:
    """The labels of the first query: `columns` names those shown, in order; the value is not."""
    organize = {
        "excludeByName": {"Time": True, "Value": True},
        "indexByName": {label: place for place, label in enumerate(columns)},
        "renameByName": dict(columns),
    }
    drawing = _draw(
        grafana.Table,
        content,
        unit=_unit(content["unit"]),
        transformations=[{"id": "organize", "options": organize}],
        thresholds=[{"value": None, "color": TEXT}],
        extraJson={
            "fieldConfig": {"defaults": {"noValue": no_value, "custom": {"inspect": False}}},
            "options": {"frameIndex": 0, "cellHeight": "sm"},
        },
    )
    return Panel(**content, width=width, height=height, drawing=drawing)


class _AlertList(grafana.Panel):  # type: ignore[misc]  # grafanalib ships no types
    """grafanalib's own class knows the options of Grafana 7 only."""

    def to_json_data(self) -> Any:
        """The panel as JSON."""
        return self.panel_json({"type": "alertlist"})


def firing_alerts(view: View, *, id: IntEnum, title: str, description: str, width: int = 12, height: int = 6) -> Panel:
    """The alerts that fire for the chosen runs, asked from whoever evaluates the rules."""
    content: Content = {
        "id": id,
        "title": title,
        "description": description,
        "unit": "none",
        "queries": (),
        "needs": (),
    }
    if view.alert_engine == "prometheus":
        content["queries"] = (Query(expr=alerting.firing_alerts(view.scope), instant=True, table=True),)
        columns = {"severity": "Severity", "alertname": "Alert", "run": "Run"}
        return table(columns=columns, no_value="none", width=width, height=height, **content)
    options = {
        "viewMode": "list",
        "groupMode": "default",
        "groupBy": [],
        "maxItems": 20,
        "sortOrder": 3,
        "dashboardAlerts": False,
        "alertName": "",
        "alertInstanceLabelFilter": '{run=~"^${run:regex}$"}',
        "folder": {"title": view.alert_folder},
        "stateFilter": {"firing": True, "pending": True, "error": True, "noData": False, "normal": False},
    }
    drawing = _draw(_AlertList, content, extraJson={"options": options})
    return Panel(**content, width=width, height=height, drawing=drawing)


def row(title: str, *panels: Panel, collapsed: bool = False) -> Row:
    """Panels under a heading."""
    return Row(title=title, panels=panels, collapsed=collapsed)


def _draw(shape: Any, content: Content, **look: Any) -> Any:
    targets = [
        grafana.Target(
            refId=letter,
            expr=str(query.expr),
            legendFormat=query.legend,
            instant=query.instant,
            format="table" if query.table else "time_series",
            datasource=DATASOURCE,
        )
        for letter, query in _lettered(content["queries"])
    ]
    return shape(
        id=int(content["id"]),
        title=content["title"],
        description=content["description"],
        dataSource=DATASOURCE,
        maxDataPoints=None,
        targets=targets,
        **look,
    )


def _stat(content: Content, no_value: str, *, verdict: bool, **look: Any) -> Any:
    """A stat with a neutral base colour: Grafana paints in it the words of an empty one."""
    more = {"wideLayout": True, "showPercentChange": False, "percentChangeColorMode": "standard"}
    return _draw(
        grafana.Stat,
        content,
        **{"mappings": [NOT_FINITE], **look},
        color={"mode": "thresholds"},
        colorMode="background" if verdict else "value",
        graphMode="none",
        textMode="auto",  # names the values as soon as there are several
        reduceCalc="lastNotNull",
        noValue=no_value,
        thresholds=[{"value": None, "color": GREY if verdict else TEXT}],
        overrides=_overrides(content["queries"]),
        extraJson={"options": more},
    )


def _lettered(panel_queries: Sequence[Query]) -> Iterable[tuple[str, Query]]:
    return zip(string.ascii_uppercase, panel_queries, strict=False)


def _overrides(panel_queries: Sequence[Query]) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": letter},
            "properties": [{"id": key, "value": value} for key, value in _ROLES[query.role].items()],
        }
        for letter, query in _lettered(panel_queries)
        if _ROLES[query.role]
    ]


def _states() -> dict[str, Any]:
    options = {
        str(int(code)): {"text": text, "color": color, "index": place}
        for place, (code, (text, color)) in enumerate(STATES.items())
    }
    return {"type": "value", "options": options}


# --- Variables ------------------------------------------------------------------------------------------------------


def variables(view: View) -> tuple[Variable, ...]:
    """The choices of every dashboard: data source, the site's further labels, run, window.

    No ad hoc filters: they rewrite each selector and turn a backtick string into a broken one.
    """
    labels = (_label_variable(label, view.scope) for label in view.scope.series.labels)
    return (_datasource_variable(view), *labels, _run_variable(view.scope), _window_variable(view))


def _datasource_variable(view: View) -> Variable:
    """Opens with the site's data source; found by its name, since versions differ in what the value is."""
    drawing = grafana.Template(
        name="datasource",
        label="Data source",
        type="datasource",
        query="prometheus",
        default=view.datasource_name,
        refresh=1,
    )
    return Variable(name="datasource", expr=None, drawing=drawing)


def _run_variable(scope: Scope) -> Variable:
    """The runs of the time range, ended ones included, in the order of the query."""
    return _query_variable("run", "Run", choices.run_choices(scope), scope.run, multi=True)


def _label_variable(label: str, scope: Scope) -> Variable:
    """The values of a further label; All also takes the series that lack it."""
    name = promql.plain_label(label)
    values = choices.label_choices(label, scope)
    return _query_variable(name, name, values, name, multi=True, includeAll=True, allValue=".*", default="All")


def _query_variable(name: str, label: str, expr: Expr, result_label: str, **look: Any) -> Variable:
    drawing = grafana.Template(
        name=name,
        label=label,
        query={"query": f"query_result({expr})", "refId": name},
        # The result has this label alone, so the last quote ends its value, whatever it contains.
        regex=f'/{result_label}="(.*)"/',
        dataSource=DATASOURCE,
        refresh=2,  # when the time range changes
        sort=0,  # as the query sorts
        **look,
    )
    return Variable(name=name, expr=expr, drawing=drawing)


def _window_variable(view: View) -> Variable:
    """Window of rates and averages: grows with the time range, and is never shorter than the site allows."""
    drawing = grafana.Template(
        name="window",
        label="Window",
        type="interval",
        query="5m,20m,1h,6h",
        default="$__auto_interval_window",
        auto=True,
        autoMin=view.settings.min_window,
        autoCount=100,
        refresh=2,
    )
    return Variable(name="window", expr=None, drawing=drawing)
