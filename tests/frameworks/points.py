"""What a run exported, read from what the console exporter printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from emitter.loop import TrainingRun

Points = dict[str, float]
"""Value by metric, as `training.loss` or `run.phase.train`; of a histogram the number of values."""

StartRun = Callable[..., TrainingRun]
Exported = Callable[[], list[Points]]


def points(text: str) -> list[Points]:
    """What each export held, oldest first."""
    return [_points(document) for document in _documents(text) if "resource_metrics" in document]


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that begin a line, among whatever a framework prints."""
    decoder = json.JSONDecoder()
    at = 0
    while (at := text.find("{\n", at)) >= 0:
        document, at = decoder.raw_decode(text, at)
        yield document


def _points(document: dict[str, Any]) -> Points:
    return {
        ".".join([metric["name"].removeprefix("megatron."), *_told_apart(point["attributes"])]): point.get(
            "value", point.get("count")
        )
        for of_resource in document["resource_metrics"]
        for of_scope in of_resource["scope_metrics"]
        for metric in of_scope["metrics"]
        for point in metric["data"]["data_points"]
    }


def _told_apart(attributes: dict[str, str]) -> list[str]:
    return [str(value) for name, value in attributes.items() if name != "nemo.run.id"]
