"""The words, units and colors of every panel, in no library's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboards.dashboard import Role
from dashboards.state import State

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
    "billions of tokens per day": "suffix:B tokens/day",
    "checkpoints": "locale",
    "errors": "locale",
    "scientific": "sci",
}
"""Grafana's word for each unit of the catalogue."""

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

BUCKETS = {
    "productive": GREEN,
    "startup": BLUE,
    "evaluate": PURPLE,
    "checkpoint": YELLOW,
    "restart": ORANGE,
    "stalled": RED,
}
"""Color of each purpose that a run's time is spent on, that of the phase where there is one."""

ROLES: Mapping[Role, Mapping[str, Any]] = {
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
