"""Whether a classic dashboard is one, by the JSON Schemas that Grafana publishes (tests/data/schemas/NOTICE).

The schemas are generated from Grafana's own types; where those say "anything", the generator wrote "an object", and
unions of alike objects became exclusive. These places are corrected on loading.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

SCHEMAS = Path(__file__).parent / "data" / "schemas"

_LINKS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["title", "url"],
        "properties": {
            "title": {"type": "string"},
            "url": {"type": "string"},
            "targetBlank": {"type": "boolean"},
            "oneClick": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
}


def errors(board: dict[str, Any]) -> list[str]:
    """What the schemas refuse, each with its place."""
    found = [*_against("dashboard", "Dashboard", {**board, "panels": []}, "")]
    for where, panel in _panels(board["panels"], "panels"):
        found += _panel_errors(panel, f"{where}({panel['type']})")
    return found


def _panels(panels: list[dict[str, Any]], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, panel in enumerate(panels):
        yield f"{where}/{place}", panel
        yield from _panels(panel.get("panels", []), f"{where}/{place}/panels")


def _panel_errors(panel: dict[str, Any], where: str) -> Iterator[str]:
    if panel["type"] == "row":
        yield from _against("dashboard", "RowPanel", {**panel, "panels": []}, where)
        return
    yield from _against("dashboard", "Panel", panel, where)
    for place, target in enumerate(panel.get("targets", [])):
        yield from _against("prometheus", "Dataquery", target, f"{where}/targets/{place}")
    schema = panel["type"].replace("-", "")
    if (SCHEMAS / f"{schema}.jsonschema.json").exists():
        yield from _against(schema, "Options", panel["options"], f"{where}/options")
        custom = panel["fieldConfig"]["defaults"].get("custom")
        if custom is not None:
            yield from _against(schema, "FieldConfig", custom, f"{where}/custom")


def _against(schema: str, definition: str, value: object, where: str) -> Iterator[str]:
    definitions = _definitions(schema)
    if definition in definitions:
        root = {"definitions": definitions, "$ref": f"#/definitions/{definition}"}
        for error in jsonschema.Draft7Validator(root).iter_errors(value):
            yield f"{where}/{'/'.join(map(str, error.path))}: {error.message[:200]}"


@cache
def _definitions(schema: str) -> dict[str, Any]:
    text = (SCHEMAS / f"{schema}.jsonschema.json").read_text(encoding="utf-8")
    definitions: dict[str, Any] = _inclusive(json.loads(text))["definitions"]
    if schema == "dashboard":
        properties = {name: definition.get("properties") for name, definition in definitions.items()}
        properties["DynamicConfigValue"]["value"] = {}
        properties["MatcherConfig"]["options"] = {}
        properties["VariableModel"]["query"] = {}
        properties["FieldConfig"]["links"] = properties["Panel"]["links"] = _LINKS
        properties["Dashboard"]["id"] = {"type": ["integer", "null"]}
    return definitions


def _inclusive(value: Any) -> Any:
    if isinstance(value, dict):
        return {("anyOf" if key == "oneOf" else key): _inclusive(item) for key, item in value.items()}
    return [_inclusive(item) for item in value] if isinstance(value, list) else value
