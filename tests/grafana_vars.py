"""A panel's expression as Grafana sends it: variables replaced the way Grafana does, seen on 9.4 and 12.3."""

from __future__ import annotations

import re
from collections.abc import Sequence

ALL = object()
"""The choice `All` of a variable that has an allValue: inserted as it is."""
ALL_VALUE = ".*"

_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}/]")
_USE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::(?P<form>\w+))?\}|(?P<bare>\w+))")


def interpolate(
    expr: str,
    runs: str | Sequence[str],
    window: str = "5m",
    range_s: int = 3600,
    interval: str = "15s",
    scrape_s: int = 15,
    **labels: object,
) -> str:
    """The expression with its variables replaced.

    labels: choices of the site's further labels, by variable name: texts, or ALL.
    Raises: KeyError for a variable that nobody gave, ValueError for a use that a hostile run id would break.
    """
    step_s = int(interval.removesuffix("s"))
    values: dict[str, object] = {
        "run": runs,
        "window": window,
        "__range": f"{range_s}s",
        "__range_s": str(range_s),
        "__interval": interval,
        "__rate_interval": f"{max(step_s + scrape_s, 4 * scrape_s)}s",
        **labels,
    }

    def replaced(use: re.Match[str]) -> str:
        name, form = use["braced"] or use["bare"], use["form"]
        if name.isdigit():  # a group of a regular expression, not a variable
            return use[0]
        value = values[name]
        if form == "regex":
            return ALL_VALUE if value is ALL else regex([value] if isinstance(value, str) else list(value))  # type: ignore[call-overload]
        if form or name == "run" or name in labels:
            raise ValueError(f"{use[0]}: only the form :regex is safe for what comes from outside")
        return str(value)

    return _USE.sub(replaced, expr)


def regex(values: Sequence[str]) -> str:
    """Values in the form `:regex`: each escaped, several in parentheses."""
    escaped = [_SPECIAL.sub(r"\\\g<0>", value) for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
