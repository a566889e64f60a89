"""House look: what panels and variables look like.

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

from dashboards import palette, promql
from dashboards.dashboard import Panel, Query, Role, Row, Variable, View
from dashboards.promql import Expr
from dashboards.queries import alerting, choices
from dashboards.scope import Scope
from emitter.catalog import Metric

if TYPE_CHECKING:
    from typing_extensions import Unpack

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _unit(unit: str) -> str:
    if unit not in palette.UNITS:
        near = difflib.get_close_matches(unit, palette.UNITS, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"dashboards.style: no unit {unit!r}{hint}.")
    return palette.UNITS[unit]


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
    *,
    width: int = 12,
    height: int = 8,
    bars: bool = False,
    steps: bool = False,
    decimals: int | None = None,
    no_value: str = "not exported",
    **content: Unpack[Content],
) -> Panel:
    """Lines over time; bars for what is counted, steps for a whole number that changes now and then."""
    # None of what is counted is drawn on an axis to 1, not to 100.
    custom = {"axisSoftMin": 0, "axisSoftMax": 1} if bars or steps else {}
    look: dict[str, Any] = {
        "decimals": decimals,
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "stepAfter" if steps else "linear",
        "fillOpacity": 60 if bars else 0,
        "lineWidth": 0 if bars else 1,
        "showPoints": "never" if bars else "auto",
    }
    drawing = _draw_over_time(content, custom, _overrides(content["queries"]), no_value, **look)
    return Panel(**content, width=width, height=height, drawing=drawing)


def shares(
    *, colors: Mapping[str, str], width: int = 12, height: int = 8, no_value: str, **content: Unpack[Content]
) -> Panel:
    """Parts of a whole over time, stacked in the order of the queries; each in the color of the word it begins with."""
    custom = {"stacking": {"mode": "normal", "group": "A"}, "axisSoftMin": 0, "axisSoftMax": 1}
    overrides = [
        {
            "matcher": {"id": "byRegexp", "options": f"/^{word}\\b/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for word, color in colors.items()
    ]
    look: dict[str, Any] = {"drawStyle": "line", "fillOpacity": 60, "lineWidth": 0, "showPoints": "never"}
    drawing = _draw_over_time(content, custom, overrides, no_value, **look)
    return Panel(**content, width=width, height=height, drawing=drawing)


def _draw_over_time(
    content: Content,
    custom: Mapping[str, Any],
    overrides: list[dict[str, Any]],
    no_value: str,
    decimals: int | None = None,
    **look: Any,
) -> Any:
    return _draw(
        grafana.TimeSeries,
        content,
        unit=_unit(content["unit"]),
        valueDecimals=decimals,
        overrides=overrides,
        thresholds=[{"value": None, "color": "transparent"}],
        tooltipMode="multi",
        tooltipSort="desc",
        extraJson={
            "fieldConfig": {"defaults": {"noValue": no_value, "custom": dict(custom)}},
            "options": {"legend": {"showLegend": True}},
        },
        **look,
    )


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
        thresholds=[{"value": None, "color": palette.GREY}],
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
        thresholds=[{"value": None, "color": palette.TEXT}],
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
        **{"mappings": [palette.NOT_FINITE], **look},
        color={"mode": "thresholds"},
        colorMode="background" if verdict else "value",
        graphMode="none",
        textMode="auto",  # names the values as soon as there are several
        reduceCalc="lastNotNull",
        noValue=no_value,
        thresholds=[{"value": None, "color": palette.GREY if verdict else palette.TEXT}],
        overrides=_overrides(content["queries"]),
        extraJson={"options": more},
    )


def _lettered(panel_queries: Sequence[Query]) -> Iterable[tuple[str, Query]]:
    return zip(string.ascii_uppercase, panel_queries, strict=False)


def _overrides(panel_queries: Sequence[Query]) -> list[dict[str, Any]]:
    return [
        {
            "matcher": {"id": "byFrameRefID", "options": letter},
            "properties": [{"id": key, "value": value} for key, value in palette.ROLES[query.role].items()],
        }
        for letter, query in _lettered(panel_queries)
        if palette.ROLES[query.role]
    ]


def _states() -> dict[str, Any]:
    options = {
        str(int(code)): {"text": text, "color": color, "index": place}
        for place, (code, (text, color)) in enumerate(palette.STATES.items())
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
