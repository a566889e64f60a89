"""The offline checks: none finds anything in the checkout, each finds what is planted for it."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum
from typing import Any

import promql_parser
import pytest

from alerts.rule import RuleGroup
from dashboards import ids, style
from dashboards.dashboard import Dashboard, Panel, Place, Row
from dashboards.ids import RunPanel
from dashboards.promql import Expr
from emitter import catalog
from provisioning import checks, expressions
from provisioning.__main__ import papers
from provisioning.bundle import Bundle, collect
from provisioning.checks import Papers, Problem
from provisioning.names import Known, alternatives
from provisioning.output import Changes
from provisioning.site import parse

SITES = {
    "default": "",
    "prometheus engine": "alerting: {engine: prometheus}",
    "dots": "series: {run_label: nemo.run.id, labels: [k8s.namespace]}",
    "target_info": "series: {identity: target_info, namespace: acme}\nrun: {world_size: 64}",
}
SCOPE = parse("", "site.yaml").panel_scope
LOSS = "megatron_training_loss{nemo_run_id=~`${run:regex}`}"


def bundle(settings: str = "") -> Bundle:
    """What a site delivers."""
    return collect(parse(settings, "site.yaml"))


def panel(expr: str = LOSS, **changes: Any) -> Panel:
    """A panel that is in order, but for the changes."""
    given: dict[str, Any] = {
        "id": RunPanel.LOSS,
        "title": "Loss",
        "description": "Falls.",
        "unit": "none",
        "queries": (style.now(SCOPE, Expr(expr)),),
        "needs": (catalog.LOSS,),
    }
    return style.timeseries(**{**given, **changes})


def board(*panels: Panel, **changes: Any) -> Dashboard:
    """A dashboard of these panels."""
    given: dict[str, Any] = {"uid": "x", "title": "X", "description": "X.", "variables": ()}
    return Dashboard(**{**given, "rows": (Row(title="All", panels=panels),), **changes})


def planted(*boards: Dashboard, groups: tuple[RuleGroup, ...] = ()) -> Bundle:
    """A bundle of these dashboards and groups alone."""
    return replace(bundle(), dashboards=boards, rule_groups=groups)


def complete(subject: Bundle) -> Papers:
    """A runbook and tests that mention every alert."""
    return Papers(
        runbook="\n".join(f"## {rule.name}\nWhat to do." for group in subject.rule_groups for rule in group.rules),
        promtool={group.name: " ".join(rule.name for rule in group.rules) for group in subject.rule_groups},
    )


def found(subject: Bundle, check: str, text: Papers | None = None) -> list[Problem]:
    """What one check finds."""
    (outcome,) = (item for item in checks.run(subject, text or complete(subject)) if item.check == check)
    return list(outcome.problems)


def test_the_checkout_has_no_problem() -> None:
    """With the runbook and the promtool tests that are there."""
    assert [str(problem) for outcome in checks.run(bundle(), papers()) for problem in outcome.problems] == []


@pytest.mark.parametrize("settings", SITES.values(), ids=list(SITES))
def test_no_site_has_a_problem(settings: str) -> None:
    """Every check looks at something and finds nothing, whatever the site's settings."""
    subject = bundle(settings)
    for outcome in checks.run(subject, complete(subject)):
        assert outcome.looked_at > 0
        assert [str(problem) for problem in outcome.problems] == []


def test_a_sound_panel_has_no_problem() -> None:
    """What the other tests change is in order to begin with."""
    subject = planted(board(panel()))
    assert [problem for outcome in checks.run(subject, complete(subject)) for problem in outcome.problems] == []


@pytest.mark.parametrize("expr", ["sum by (", "loss{run=`a}", "rate(megatron_training_loss)", "loss{$nonsense}"])
def test_what_is_no_promql_is_found(expr: str) -> None:
    """Grafana shows a query error as an empty panel, so it is found here."""
    (problem,) = found(planted(board(panel(expr))), "syntax")
    assert problem.where == "dashboards.x: 'Loss', query A"
    assert problem.message.startswith("must be PromQL (got ")


@pytest.mark.parametrize(
    ("expr", "hint"),
    [
        ("megatron_training_los", "Did you mean 'megatron_training_loss'?"),
        ('{__name__="megatron_training_los"}', "Did you mean 'megatron_training_loss'?"),
        ('{__name__=~"megatron_training_loss.*"}', "Select through the scope."),
        ('{__name__=~"(megatron_training_|megatron[.]training[.])loss|up"}', "Select through the scope."),
        ('{nemo_run_id="r1"}', "Select through the scope."),
        ('sum by (up) (rate({job="up"}[5m])) + on (up) zzz{a="}"}', "Select through the scope."),
    ],
)
def test_a_name_that_nobody_writes_is_found(expr: str, hint: str) -> None:
    """A typo, an open pattern, a foreign metric, no name at all."""
    problems = found(planted(board(panel(expr))), "names")
    assert problems
    assert {problem.hint for problem in problems} == {hint}


@pytest.mark.parametrize(
    ("function", "window", "enough"),
    [
        ("max_over_time", "59s", False),
        ("max_over_time", "$__interval", False),
        ("max_over_time", "60s", True),
        ("max_over_time", "$__rate_interval", True),
        ("last_over_time", "29s", False),
        ("last_over_time", "30s", True),
    ],
)
def test_a_range_with_too_few_samples_is_found(function: str, window: str, enough: bool) -> None:
    """One lost scrape must not empty a rate, nor lose a last value."""
    problems = found(planted(board(panel(f"{function}({LOSS}[{window}])"))), "ranges")
    assert len(problems) == (not enough)
    assert all(problem.message.startswith(f"a range of {function} must be at least ") for problem in problems)


@pytest.mark.parametrize("uid", ["a" * 41, "a b", "a/b"])
def test_a_uid_that_grafana_refuses_is_found(uid: str) -> None:
    """At most 40 letters, digits, dashes and underscores."""
    (problem,) = found(planted(board(panel(), uid=uid)), "uids")
    assert problem.message == f"a UID must be 1 to 40 letters, digits, '-' or '_' (got {uid!r})"


def test_a_repeated_uid_and_a_repeated_title_are_found() -> None:
    """Either stops Grafana from updating any board of the provider."""
    subject = planted(board(panel()), board(panel()))
    assert [str(problem) for problem in found(subject, "uids")] == [
        "x: a UID must be given once (got it 2 times).",
        "Training/X: a title must be unique in its folder (got it 2 times).",
    ]


def test_a_repeated_alert_is_found() -> None:
    """Two rules of one name would have one uid."""
    group = bundle().rule_groups[0]
    again = replace(group, name="again")
    problems = found(planted(board(panel()), groups=(group, again)), "uids")
    assert len(problems) == 2 * len(group.rules)


def test_a_repeated_panel_number_is_found() -> None:
    """Links lead to the first panel of a number only."""
    (problem,) = found(planted(board(panel(), panel(title="Twin"))), "panels")
    assert str(problem) == "x/7: a panel number must be given once (got it 2 times)."


def test_a_panel_number_of_ones_own_is_found() -> None:
    """Numbers come from ids, where none is reused."""
    own = IntEnum("own", {"LOSS": 7})
    (problem,) = found(planted(board(panel(id=own["LOSS"]))), "panels")
    assert problem.message.startswith("its number must come from ids")


def test_a_need_that_no_query_selects_is_found() -> None:
    """What a panel needs is what it asks for."""
    (problem,) = found(planted(board(panel(needs=(catalog.GRAD_NORM,)))), "panels")
    assert problem.message == "needs must be selected by a query (got ['megatron.training.grad_norm'])"


def test_a_panel_without_needs_is_found() -> None:
    """A query on the catalogue needs something of it."""
    (problem,) = found(planted(board(panel(needs=()))), "panels")
    assert problem.hint == "Its queries select ['megatron.training.loss']."


def test_panels_that_overlap_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grafana would move one of them somewhere else."""
    one, other = panel(), panel(id=RunPanel.GRAD_NORM, title="Norm")
    places = [(one, Place(x=0, y=0, width=12, height=8)), (other, Place(x=11, y=7, width=12, height=8))]
    monkeypatch.setattr(Dashboard, "places", lambda _: iter(places))
    (problem,) = found(planted(board(one, other)), "grid")
    assert problem.message == "must not lie on 'Norm'"


def test_a_panel_beyond_the_edge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid has 24 columns."""
    one = panel()
    monkeypatch.setattr(Dashboard, "places", lambda _: iter([(one, Place(x=13, y=0, width=12, height=8))]))
    (problem,) = found(planted(board(one)), "grid")
    assert problem.message.startswith("must end within 24 columns")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ({"runbook": "# Runbook\nLossNonFinite"}, "must have a heading '## {name}' in alerts/runbook.md"),
        ({"promtool": {"loss": "LossNonFiniteOrSo"}}, "must have a case in tests/promtool/{group}.yaml"),
    ],
    ids=["runbook", "promtool"],
)
def test_an_alert_without_runbook_or_test_is_found(without: dict[str, Any], message: str) -> None:
    """Whoever is woken has a page to read, and the rule has been tried."""
    subject = bundle()
    messages = [problem.message for problem in found(subject, "alerts", replace(complete(subject), **without))]
    assert messages == [
        message.format(name=rule.name, group=group.name) for group in subject.rule_groups for rule in group.rules
    ]


def test_an_alert_whose_panel_is_gone_is_found() -> None:
    """The link in a page at 3 am leads somewhere."""
    subject = bundle()
    problems = found(replace(subject, dashboards=(board(panel()),)), "alerts")
    assert len(problems) == sum(len(group.rules) for group in subject.rule_groups)
    assert all(problem.message.startswith("its panel must exist (got ") for problem in problems)
    assert f"of {ids.RUN!r}" in problems[0].message


def test_a_tree_that_is_not_what_is_rendered_is_found() -> None:
    """Each difference is a problem, each equal file is counted."""
    changes = Changes(new=("a",), changed=("b",), unchanged=("c", "d"), removed=("e",))
    outcome = checks.outcome("output", checks.output(changes, "deploy"))
    assert outcome.looked_at == 5
    assert [str(problem) for problem in outcome.problems] == [
        "deploy/a: must be there. Run make provision.",
        "deploy/b: must be what is rendered. Run make provision.",
        "deploy/e: must be gone: nothing renders it any more. Run make provision.",
    ]


@pytest.mark.parametrize("settings", SITES.values(), ids=list(SITES))
def test_names_and_ranges_are_those_of_the_syntax_tree(settings: str) -> None:
    """The quick reading of an expression finds what walking the parser's tree finds."""
    subject = bundle(settings)
    texts = {item.text for item in expressions.expressions(subject)}
    for text in sorted(texts, key=len)[: len(texts) * 2 // 3]:  # the tree of a long expression takes a second to walk
        selectors: list[str] = []
        ranges_s: list[int] = []

        def visit(node: Any) -> None:
            if isinstance(node, promql_parser.VectorSelector):
                named = [matcher for matcher in node.matchers.matchers if matcher.name == "__name__"]
                selectors.append(named[0].value if named else node.name)  # noqa: B023
            if isinstance(node, promql_parser.MatrixSelector):
                ranges_s.append(int(node.range.total_seconds()))  # noqa: B023

        promql_parser.walk(promql_parser.parse(expressions._STRING.sub(expressions._quoted, text)), visit)
        parsed = expressions.parse(text)
        assert sorted(item.name or item.pattern for item in parsed.selectors) == sorted(selectors)
        assert sorted(item.length_s for item in parsed.ranges) == sorted(ranges_s)


def test_a_pattern_is_split_outside_of_its_groups() -> None:
    """`(a|b)c|d` has two branches."""
    assert alternatives("(a|b)c|d") == ("(a|b)c", "d")


def test_the_catalogue_entry_behind_a_name_is_known() -> None:
    """Each spelling and each pattern leads back to its metric, also behind a namespace."""
    known = Known.of("acme")
    parsed = expressions.parse(
        'acme_megatron_training_loss + {__name__=~"(acme_)?(megatron_run_|megatron[.]run[.])phase"}'
    )
    assert known.metrics(parsed) == {catalog.LOSS.name, catalog.RUN_PHASE.name}
