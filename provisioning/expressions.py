"""Every PromQL expression of a bundle, as the server gets it, and what its syntax tree says.

Grafana's variables are replaced as Grafana does it. Each distinct text is parsed once.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import promql_parser

from dashboards import signals
from dashboards.dashboard import Dashboard, Panel
from dashboards.promql import seconds
from provisioning.bundle import Bundle
from provisioning.site import SAMPLES, Site

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|`[^`]*`')
# The rest are for a text whose strings are held back, so that a brace or a bracket is one of the grammar.
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\{([^{}]*)\}")
_NAME_MATCHER = re.compile(r'__name__\s*(=~|=)\s*"(\d+)"')
_RANGE = re.compile(r"(\w+)\s*\([^()\[\]]*\[(\w+)\]")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)|\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w:])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()")
_KEYWORDS = {"and", "or", "unless", "offset", "bool", "inf", "nan", "atan2", "start", "end"}

_SPECIAL = re.compile(r"[\\^$*+?.()|\[\]{}/]")
_VARIABLE = re.compile(r"\$(?:\w+|(\{\w+:regex\}))")


@dataclass(frozen=True, kw_only=True)
class Expression:
    """One expression and where it stands."""

    where: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Selector:
    """What one selector says about the metric's name."""

    name: str = ""
    pattern: str = ""


@dataclass(frozen=True, kw_only=True)
class Range:
    """A range of samples and the function that takes it; a subquery is none."""

    function: str
    length_s: int


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What a check needs to know of an expression."""

    error: str = ""
    selectors: tuple[Selector, ...] = ()
    ranges: tuple[Range, ...] = ()


def expressions(bundle: Bundle) -> Iterator[Expression]:
    """Every expression that the bundle hands to a Prometheus or a Grafana."""
    for board in bundle.dashboards:
        yield from _of_variables(board, bundle.site)
        for panel in board.panels:
            yield from of_panel(board, panel, bundle.site)
    yield from _of_rules(bundle)


def of_panel(board: Dashboard, panel: Panel, site: Site) -> Iterator[Expression]:
    """The queries of a panel."""
    for letter, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        where = f"dashboards.{board.uid}: {panel.title!r}, query {letter}"
        yield Expression(where=where, text=as_asked(str(query.expr), site))


def _of_variables(board: Dashboard, site: Site) -> Iterator[Expression]:
    for variable in board.variables:
        if variable.expr is not None:
            where = f"dashboards.{board.uid}: variable {variable.name!r}"
            yield Expression(where=where, text=as_asked(str(variable.expr), site))


def _of_rules(bundle: Bundle) -> Iterator[Expression]:
    """Recording rules, and each alert in both of its forms."""
    site = bundle.site
    recorded, in_place = site.recorded_scope, site.in_place_scope
    for signal in signals.SIGNALS:
        yield Expression(where=f"dashboards.signals: {signal.name!r}", text=str(signal.rule(recorded)))
    for group in bundle.rule_groups:
        for rule in group.rules:
            where = f"alerts.{group.name}: {rule.name}"
            yield Expression(where=where, text=str(rule.expr(recorded)))
            yield Expression(where=f"{where} (for Grafana)", text=str(rule.expr(in_place)))


def as_asked(text: str, site: Site, *, run: str = "run-1", time_range: str = "1h") -> str:
    """A panel's expression with Grafana's variables replaced, by the shortest value where there are several."""
    scrape_s = seconds(site.scrape_interval)
    values = {
        "$window": site.dashboards.min_window,
        "$__range": time_range,
        "$__rate_interval": f"{SAMPLES * scrape_s}s",
        "$__interval": site.scrape_interval,
    }
    escaped = _SPECIAL.sub(r"\\\g<0>", run)
    # An unknown variable stays as it is, and is refused by the parser.
    return _VARIABLE.sub(lambda match: escaped if match[1] else values.get(match[0], match[0]), text)


@cache
def parse(text: str) -> Parsed:
    """What an expression says; a text that is no PromQL has an error and nothing else.

    The parser judges the grammar. Names and ranges are read from the text: walking the parser's tree copies every
    subtree at every node, which takes seconds.
    """
    strings: list[str] = []

    def held(match: re.Match[str]) -> str:
        strings.append(match[0])
        return f'"{len(strings) - 1}"'

    bare = _STRING.sub(held, text)
    try:
        # The parser refuses some escapes in backticks that Prometheus accepts.
        promql_parser.parse(_STRING.sub(_quoted, text))
    except ValueError as error:
        return Parsed(error=str(error))
    ranges = tuple(Range(function=function, length_s=seconds(window)) for function, window in _RANGE.findall(bare))
    selectors = [_selector(name, matchers, strings) for name, matchers in _SELECTOR.findall(bare)]
    rest = _GROUPING.sub(" ", _SELECTOR.sub(" ", bare))
    names = (name for name in _NAME.findall(rest) if name.lower() not in _KEYWORDS)
    return Parsed(selectors=(*selectors, *(Selector(name=name) for name in names)), ranges=ranges)


def _quoted(match: re.Match[str]) -> str:
    text = match[0]
    if text.startswith('"'):
        return text
    escaped = text[1:-1].replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _selector(name: str, matchers: str, strings: list[str]) -> Selector:
    found = _NAME_MATCHER.search(matchers)
    if not found:
        return Selector(name=name)
    value = strings[int(found[2])][1:-1]
    return Selector(pattern=value) if found[1] == "=~" else Selector(name=value)
