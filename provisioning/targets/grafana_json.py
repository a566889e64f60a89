"""What grafanalib writes, as the classic JSON of today: schema version 39, which Grafana 9.4 to 13 read alike.

grafanalib 0.7.1 writes schema version 12, keys of panels that no longer exist, and null for every field left alone;
Grafana would migrate such a board on loading and lose thresholds on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 39
"""Newer numbers are opened by older Grafanas without migration; the shape has to be right for both."""

_DEAD_KEYS = {
    "dashboard": {"__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style", "timepicker"},
    "panel": {"color", "columns", "editable", "error", "fontSize", "height", "hideTimeOverride", "mappings", "span"},
    "row": {"datasource", "fieldConfig", "links", "maxDataPoints", "targets", "transformations", "transparent"},
    "target": {"intervalFactor", "metric", "query", "step", "target"},
    "variable": {"useTags"},
    "custom": {"displayMode", "filterable"},
}
"""Keys of grafanalib that today's Grafana does not know, or that only repeat its default."""

_INTERVAL_KEYS = {"auto", "auto_count", "auto_min"}


def plain(value: Any) -> Any:
    """A grafanalib object as dictionaries, lists and scalars."""
    if hasattr(value, "to_json_data"):
        return plain(value.to_json_data())
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def normalize(board: Any) -> dict[str, Any]:
    """The current form of a grafanalib dashboard."""
    raw = _without(plain(board), "dashboard")
    raw["schemaVersion"] = SCHEMA_VERSION
    raw["timepicker"] = {}
    raw["templating"] = {"list": [_variable(variable) for variable in raw["templating"]["list"]]}
    raw["panels"] = [_panel(panel) for panel in raw["panels"]]
    return raw


def _without(raw: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The object without dead keys and without fields that were left alone."""
    return {key: value for key, value in raw.items() if key not in _DEAD_KEYS[kind] and value is not None}


def _panel(raw: Mapping[str, Any]) -> dict[str, Any]:
    panel = _without(raw, "panel")
    if panel["type"] == "row":
        return {**_without(panel, "row"), "panels": [_panel(child) for child in panel["panels"]]}
    for key in ("links", "transformations"):
        if not panel[key]:
            del panel[key]
    panel["targets"] = [_target(target) for target in panel["targets"]]
    if not panel["targets"]:
        del panel["targets"], panel["datasource"]
    panel["fieldConfig"] = _field_config(panel["fieldConfig"], panel["type"])
    return panel


def _field_config(raw: Mapping[str, Any], panel_type: str) -> dict[str, Any]:
    defaults = {key: value for key, value in raw["defaults"].items() if value is not None}
    custom = _without(defaults.pop("custom", {}), "custom")
    if not custom.get("stacking"):
        custom.pop("stacking", None)
    if custom:
        defaults["custom"] = custom
    if panel_type == "alertlist":
        defaults = {}
    return {"defaults": defaults, "overrides": raw.get("overrides", [])}


def _target(raw: Mapping[str, Any]) -> dict[str, Any]:
    target = {key: value for key, value in _without(raw, "target").items() if value not in ("", False)}
    # Without `range`, some versions run an instant query as both.
    return {**target, "editorMode": "code", "instant": raw["instant"], "range": not raw["instant"]}


def _variable(raw: Mapping[str, Any]) -> dict[str, Any]:
    variable = _without(raw, "variable")
    variable["skipUrlSync"] = False
    variable["current"] = _current(variable["current"], multi=variable["includeAll"])
    if variable["type"] == "interval":
        return variable
    if variable["type"] == "query":
        variable["definition"] = variable["query"]["query"]
    else:
        del variable["sort"]
    return {key: value for key, value in variable.items() if key not in _INTERVAL_KEYS}


def _current(raw: Mapping[str, Any], *, multi: bool) -> dict[str, Any]:
    """The choice with which a board opens; grafanalib gives texts for values, and null for none."""
    text, value = raw["text"] or "", raw["value"] or ""
    if text == "All":
        return {"selected": True, "text": ["All"], "value": ["$__all"]} if multi else {"text": "All", "value": "$__all"}
    if value.startswith("$__auto"):
        text = "auto"
    return {"selected": bool(value), "text": text, "value": value}
