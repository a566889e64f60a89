"""Which metric names a selector may use: the spellings of the catalogue, and what recording rules write."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from dashboards import signals
from dashboards.scope import name_pattern, spellings
from emitter import catalog
from emitter.catalog import Kind
from provisioning.expressions import Parsed, Selector

BUILT_IN = ("ALERTS", "ALERTS_FOR_STATE")
"""Series that Prometheus writes itself."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The names and name patterns that selectors may use, and the catalogue entry behind each."""

    names: Mapping[str, str]
    patterns: Mapping[str, str]

    @classmethod
    def of(cls, namespace: str) -> Known:
        """What is known where a pipeline puts `namespace` before names."""
        names, patterns = {}, {}
        for metric in catalog.METRICS:
            for part in ("", "bucket", "count", "sum") if metric.kind is Kind.HISTOGRAM else ("",):
                patterns[name_pattern(metric, part, namespace)] = metric.name
                names.update(dict.fromkeys(spellings(metric, part, namespace), metric.name))
        infos = ("target_info", f"{namespace}_target_info") if namespace else ("target_info",)
        others = (*BUILT_IN, *infos, *(signal.name for signal in signals.SIGNALS))
        return cls(names={**names, **dict.fromkeys(others, "")}, patterns=patterns)

    def objection(self, selector: Selector) -> tuple[str, str]:
        """What is wrong with the name in a selector and what to do; empty if nothing is."""
        if selector.pattern:
            if all(part in self.patterns for part in alternatives(selector.pattern)):
                return "", ""
            message = f"a name pattern must be the spellings of catalogue entries (got {selector.pattern!r})"
            return message, "Select through the scope."
        if selector.name in self.names:
            return "", ""
        near = difflib.get_close_matches(selector.name, self.names, 1)
        hint = f"Did you mean {near[0]!r}?" if near else "Select through the scope."
        return f"must name a spelling of a catalogue entry or a recording rule (got {selector.name!r})", hint

    def metrics(self, parsed: Parsed) -> set[str]:
        """The catalogue entries that an expression selects."""
        found = {self.names.get(selector.name, "") for selector in parsed.selectors}
        for selector in parsed.selectors:
            found.update(self.patterns.get(part, "") for part in alternatives(selector.pattern))
        return found - {""}


@cache
def alternatives(pattern: str) -> tuple[str, ...]:
    """The branches of a regular expression, split at each `|` outside of parentheses."""
    branches, depth = [""], 0
    for letter in pattern:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "|" and not depth:
            branches.append("")
        else:
            branches[-1] += letter
    return tuple(branches)
