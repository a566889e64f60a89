"""Offline checks of what is delivered. They never raise: each returns every problem it finds, at once.

A check yields once for each thing it looks at: None, or the problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from dashboards import ids
from dashboards.dashboard import COLUMNS, Panel
from dashboards.promql import seconds
from provisioning import expressions
from provisioning.bundle import Bundle
from provisioning.expressions import Expression
from provisioning.names import Known
from provisioning.output import Changes
from provisioning.site import ALERT_FOLDER, BOARD_FOLDER, SAMPLES
from provisioning.targets import grafana_alerts

UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")

SAMPLES_OF_LAST = 2
"""`last_over_time` needs one sample; with two scrapes in its range, one may be lost."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, and what to do."""

    check: str
    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}.{f' {self.hint}' if self.hint else ''}"


Finding = Problem | None


@dataclass(frozen=True, kw_only=True)
class Papers:
    """What else an alert needs, from the checkout: its page of the runbook and its tests."""

    runbook: str
    promtool: Mapping[str, str]
    """Text by name of the group."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one check found."""

    check: str
    looked_at: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What the checks look at, and what several of them need."""

    bundle: Bundle
    papers: Papers
    expressions: tuple[Expression, ...]
    known: Known


Check = Callable[[Subject], Iterable[Finding]]


def run(bundle: Bundle, papers: Papers) -> list[Outcome]:
    """Every check, in the order in which a person would want to know."""
    subject = Subject(
        bundle=bundle,
        papers=papers,
        expressions=tuple(expressions.expressions(bundle)),
        known=Known.of(bundle.site.series.namespace),
    )
    return [outcome(name, check(subject)) for name, check in CHECKS.items()]


def outcome(name: str, findings: Iterable[Finding]) -> Outcome:
    """The findings of a check, counted."""
    found = list(findings)
    return Outcome(check=name, looked_at=len(found), problems=tuple(finding for finding in found if finding))


# --- Expressions ----------------------------------------------------------------------------------------------------


def syntax(subject: Subject) -> Iterator[Finding]:
    """Every expression is PromQL."""
    for expression in subject.expressions:
        error = expressions.parse(expression.text).error
        yield (
            Problem(check="syntax", where=expression.where, message=f"must be PromQL (got {error!r})")
            if error
            else None
        )


def names(subject: Subject) -> Iterator[Finding]:
    """Every selector names series that somebody writes, by a closed list."""
    for expression in subject.expressions:
        for selector in expressions.parse(expression.text).selectors:
            message, hint = subject.known.objection(selector)
            yield Problem(check="names", where=expression.where, message=message, hint=hint) if message else None


def ranges(subject: Subject) -> Iterator[Finding]:
    """Every range holds enough samples that one lost scrape does not empty it; a last value needs fewer."""
    scrape_s = seconds(subject.bundle.site.scrape_interval)
    for expression in subject.expressions:
        for taken in expressions.parse(expression.text).ranges:
            least = SAMPLES_OF_LAST if taken.function == "last_over_time" else SAMPLES
            message = (
                f"a range of {taken.function} must be at least {least} scrape intervals, {least * scrape_s}s "
                f"(got {taken.length_s}s)"
            )
            short = taken.length_s < least * scrape_s
            yield Problem(check="ranges", where=expression.where, message=message) if short else None


# --- Dashboards -----------------------------------------------------------------------------------------------------


def uids(subject: Subject) -> Iterator[Finding]:
    """UIDs are valid and unique; so are titles in a folder: Grafana stops updating all boards on a duplicate."""
    rules = [rule for group in subject.bundle.rule_groups for rule in group.rules]
    boards = [(f"dashboards.{board.uid}", board.uid) for board in subject.bundle.dashboards]
    alerts = [(f"alerts: {rule.name}", grafana_alerts.uid(rule)) for rule in rules]
    for named in (boards, alerts):
        for where, uid in named:
            good = UID.fullmatch(uid)
            message = f"a UID must be 1 to 40 letters, digits, '-' or '_' (got {uid!r})"
            yield None if good else Problem(check="uids", where=where, message=message)
        yield from _repeated("uids", (uid for _, uid in named), "a UID must be given once")
    titles = [(BOARD_FOLDER, board.title) for board in subject.bundle.dashboards] + [
        (ALERT_FOLDER, rule.name) for rule in rules
    ]
    yield from _repeated(
        "uids", (f"{folder}/{title}" for folder, title in titles), "a title must be unique in its folder"
    )


def panels(subject: Subject) -> Iterator[Finding]:
    """Every panel has a number of its own from `ids`, and needs catalogue entries that its queries select."""
    for board in subject.bundle.dashboards:
        numbers = (f"{board.uid}/{int(panel.id)}" for panel in board.panels)
        yield from _repeated("panels", numbers, "a panel number must be given once")
        for panel in board.panels:
            where = f"dashboards.{board.uid}: {panel.title!r}"
            if type(panel.id) not in vars(ids).values():
                yield Problem(check="panels", where=where, message=f"its number must come from ids (got {panel.id!r})")
            parsed = [expressions.parse(item.text) for item in expressions.of_panel(board, panel, subject.bundle.site)]
            selected = set().union(*(subject.known.metrics(item) for item in parsed))
            yield _needs_problem(panel, selected, where)


def _needs_problem(panel: Panel, selected: set[str], where: str) -> Finding:
    needs = {metric.name for metric in panel.needs}
    if selected and not needs:
        message = "needs must name the catalogue entries without which the panel is empty (got none)"
        return Problem(check="panels", where=where, message=message, hint=f"Its queries select {sorted(selected)}.")
    if strange := sorted(needs - selected):
        return Problem(check="panels", where=where, message=f"needs must be selected by a query (got {strange})")
    return None


def grid(subject: Subject) -> Iterator[Finding]:
    """No panel lies on another one or beyond the right edge."""
    for board in subject.bundle.dashboards:
        places = list(board.places())
        for item, place in places:
            over = place.x + place.width > COLUMNS
            message = f"must end within {COLUMNS} columns (got {place})"
            yield (
                Problem(check="grid", where=f"dashboards.{board.uid}: {item.title!r}", message=message)
                if over
                else None
            )
        folded = {id(panel) for row in board.rows if row.collapsed for panel in row.panels}
        visible = [(item, place) for item, place in places if id(item) not in folded]
        for (one, place), (other, elsewhere) in combinations(visible, 2):
            if place.overlaps(elsewhere):
                where = f"dashboards.{board.uid}: {one.title!r}"
                yield Problem(check="grid", where=where, message=f"must not lie on {other.title!r}")


# --- Alerts ---------------------------------------------------------------------------------------------------------


def alerts(subject: Subject) -> Iterator[Finding]:
    """Every alert has a page in the runbook, a promtool case, and a panel that exists."""
    headings = set(re.findall(r"^#+ *(\w+) *$", subject.papers.runbook, re.MULTILINE))
    shown = {(board.uid, int(panel.id)) for board in subject.bundle.dashboards for panel in board.panels}
    rules = [(group.name, rule) for group in subject.bundle.rule_groups for rule in group.rules]
    for group, rule in rules:
        where = f"alerts.{group}: {rule.name}"
        tested = re.search(rf"\b{rule.name}\b", subject.papers.promtool.get(group, ""))
        uid, panel = rule.panel
        demands = (
            (rule.name in headings, f"must have a heading '## {rule.name}' in alerts/runbook.md"),
            (tested, f"must have a case in tests/promtool/{group}.yaml"),
            ((uid, int(panel)) in shown, f"its panel must exist (got {int(panel)} of {uid!r})"),
        )
        for good, message in demands:
            yield None if good else Problem(check="alerts", where=where, message=message)


def output(changes: Changes, root: str) -> Iterator[Finding]:
    """The tree on disk is what rendering would write."""
    yield from (None for _ in changes.unchanged)
    for paths, message in (
        (changes.new, "must be there"),
        (changes.changed, "must be what is rendered"),
        (changes.removed, "must be gone: nothing renders it any more"),
    ):
        for path in paths:
            yield Problem(check="output", where=f"{root}/{path}", message=message, hint="Run make provision.")


def _repeated(check: str, keys: Iterable[str], message: str) -> Iterator[Finding]:
    for key, count in Counter(keys).items():
        yield Problem(check=check, where=key, message=f"{message} (got it {count} times)") if count > 1 else None


CHECKS: Mapping[str, Check] = {
    "syntax": syntax,
    "names": names,
    "ranges": ranges,
    "uids": uids,
    "panels": panels,
    "grid": grid,
    "alerts": alerts,
}
