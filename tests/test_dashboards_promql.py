"""dashboards.promql: what is written is what is meant, whatever is put together and whatever a label holds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from alert_timeline import answer
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboards import promql
from dashboards.promql import TIME, Expr
from provisioning.stack.prometheus import Prometheus

# --- Expressions and the trees they stand for -----------------------------------------------------------------------

Tree = Any
Meant = tuple[Expr, Tree]
"""An expression, and the tree that was meant."""

A = promql.selector([], "a")
B = promql.selector([], "b")
C = promql.selector([], "c")


def tree(node: Any) -> Tree:
    """What the parser understood, without parentheses."""
    if isinstance(node, promql_parser.ParenExpr):
        return tree(node.expr)
    if isinstance(node, promql_parser.BinaryExpr):
        how = node.modifier
        on = tuple(how.matching.labels) if how and how.matching else None
        return (str(node.op), on, tree(node.lhs), tree(node.rhs))
    if isinstance(node, promql_parser.Call):
        return (node.func.name, *map(tree, node.args))
    if isinstance(node, promql_parser.AggregateExpr):
        return (str(node.op), tuple(node.modifier.labels), tree(node.expr))
    if isinstance(node, promql_parser.SubqueryExpr):
        return ("[:]", tree(node.expr))
    if isinstance(node, promql_parser.MatrixSelector):
        return ("[]", node.vector_selector.name)
    if isinstance(node, promql_parser.NumberLiteral):
        return node.val
    if isinstance(node, promql_parser.UnaryExpr):
        return -tree(node.expr)
    return node.name


def understood(expr: Expr) -> Tree:
    """The tree of an expression as the parser reads its text."""
    return tree(promql_parser.parse(expr.text))


def _operation(operator: str, build: Callable[[Expr, Any], Expr], on: tuple[str, ...] | None = None) -> Any:
    return lambda left, right: (build(left[0], right[0]), (operator, on, left[1], right[1]))


SET_OPERATIONS = [
    _operation("and", Expr.and_),
    _operation("or", Expr.or_),
    _operation("unless", Expr.unless),
    _operation("and", lambda left, right: left.and_(right, on=("run",)), ("run",)),
    _operation("or", lambda left, right: left.or_(right, on=()), ()),
    _operation("unless", lambda left, right: left.unless(right, on=("run", "job")), ("run", "job")),
    _operation("/", lambda left, right: left.over(right, on=("run",)), ("run",)),
    _operation("*", lambda left, right: left.times(right, on=("run",), group_left=("gpus",)), ("run",)),
]
OPERATIONS = [
    _operation("+", Expr.__add__),
    _operation("-", Expr.__sub__),
    _operation("*", Expr.__mul__),
    _operation("/", Expr.__truediv__),
    _operation(">", Expr.__gt__),
    _operation("<", Expr.__lt__),
    _operation(">=", Expr.__ge__),
    _operation("==", Expr.equals),
    _operation("!=", Expr.differs),
]
REVERSED = [_operation("-", lambda left, right: right.__rsub__(left))]
WRAPPERS: list[Callable[[Meant], Meant]] = [
    lambda inner: (promql.call("abs", inner[0]), ("abs", inner[1])),
    lambda inner: (promql.aggregate("max", inner[0], ("run",)), ("max", ("run",), inner[1])),
    lambda inner: (
        promql.call("max_over_time", inner[0].range("5m")),
        ("max_over_time", ("[]", inner[1]) if inner[0].selector else ("[:]", inner[1])),
    ),
]

numbers = st.integers(-9, 9).map(lambda n: (n, n)) | st.sampled_from([0.5, -2.25, 1e20]).map(lambda n: (n, n))
leaves = st.sampled_from([(A, "a"), (B, "b"), (C, "c")])


def _grown(smaller: st.SearchStrategy[Meant]) -> st.SearchStrategy[Meant]:
    def apply(operation: Any, left: Any, right: Any) -> Meant:
        return operation(left, right)

    return (
        st.builds(apply, st.sampled_from([*SET_OPERATIONS, *OPERATIONS]), smaller, smaller)
        | st.builds(apply, st.sampled_from(OPERATIONS), smaller, numbers)
        | st.builds(apply, st.sampled_from(REVERSED), numbers, smaller)
        | st.builds(lambda wrap, inner: wrap(inner), st.sampled_from(WRAPPERS), smaller)
    )


@settings(deadline=None)
@given(st.recursive(leaves, _grown, max_leaves=12))
def test_the_text_means_the_tree(meant: Meant) -> None:
    """However expressions are put together, a parser reads the operations in the order in which they were meant."""
    expr, intended = meant
    assert understood(expr) == intended


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (A + B * C, "a + b * c"),
        ((A + B) * C, "(a + b) * c"),
        (A - (B - C), "a - (b - c)"),
        (A - B - C, "a - b - c"),
        (1 - A, "1 - a"),
        (2 * A, "a * 2"),
        (A / (B / C), "a / (b / c)"),
        ((A > 1).and_(B), "a > 1 and b"),
        (A.equals(B > C), "a == (b > c)"),
        (A.or_(B).and_(C), "(a or b) and c"),
        (A.unless(B.unless(C)), "a unless (b unless c)"),
        (promql.any_of(A, B, C), "a or b or c"),
        (A.unless(B, on=("run",)), "a unless on (run) b"),
        (A.times(B, on=("run",), group_left=("gpus",)) > 0, "a * on (run) group_left (gpus) b > 0"),
        (TIME - A > 5, "time() - a > 5"),
        (promql.aggregate("max", A + B, ("run", "nemo.run.id")), 'max by (run, "nemo.run.id") (a + b)'),
        (promql.count_values("n", A, ("run",)), 'count_values by (run) ("n", a)'),
        (promql.without_name(A), "max without () (a)"),
        (promql.set_label(A, "x", 'y"'), 'label_replace(a, "x", "y\\"", "x", "")'),
        (promql.copy_label(A, "nemo.run.id", "run"), 'label_replace(a, "run", "$1", "nemo.run.id", "(.+)")'),
        (promql.offset(A, "5m"), "a offset 5m"),
    ],
)
def test_no_parentheses_too_few_or_too_many(expr: Expr, text: str) -> None:
    """The text is what a person would write."""
    assert str(expr) == text


def test_a_selector_takes_a_range_and_all_else_a_subquery() -> None:
    """A range stands behind a selector; behind anything else it has a step, and its offset comes last."""
    assert A.range("5m") == "a[5m]"
    assert A.range("5m", offset="1h") == "a[5m] offset 1h"
    assert (A + B).range("5m") == "(a + b)[5m:1m]"
    assert (A + B).range("5m", offset="1h", step="15s") == "(a + b)[5m:15s] offset 1h"
    assert promql.offset(A, "1h").range("5m") == "(a offset 1h)[5m:1m]"


def test_only_a_selector_takes_an_offset() -> None:
    """An offset behind anything but a selector is refused: PromQL would."""
    with pytest.raises(ValueError, match="only a selector takes an offset"):
        promql.offset(A + B, "5m")


@pytest.mark.parametrize("wrong", ["", "5", "m", "5 m", "-5m", "1.5h", "5m)", "$", "${window}", "$window]"])
def test_a_duration_is_a_duration(wrong: str) -> None:
    """What is no duration never gets into a range or an offset."""
    for put in (A.range, lambda text: A.range("5m", offset=text or "x"), lambda text: promql.offset(A, text)):
        with pytest.raises(ValueError, match="a duration must be like"):
            put(wrong)


@pytest.mark.parametrize(
    ("text", "length"),
    [("30s", 30), ("5m", 300), ("1h30m", 5400), ("1d", 86_400), ("1w", 604_800), ("1y", 31_536_000), ("1d1s", 86_401)],
)
def test_durations_in_seconds(text: str, length: int) -> None:
    """A duration as Prometheus writes it has this length."""
    assert promql.seconds(text) == length


@pytest.mark.parametrize("text", ["", "0s", "5", "30m1h", "5ms", "1.5h", "-1m", " 1m", "$window"])
def test_what_is_no_length_is_refused(text: str) -> None:
    """A duration out of order, of length nothing, or in units that sites do not use has no length."""
    with pytest.raises(ValueError, match="must be a duration"):
        promql.seconds(text)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive(value: float) -> None:
    """A parser reads the very number that was meant."""
    assert tree(promql_parser.parse(promql.number(value))) == value


def test_whole_numbers_have_no_point() -> None:
    """A threshold reads as a person writes it."""
    assert [promql.number(n) for n in (1, 1.0, 0.5, -3.0)] == ["1", "1", "0.5", "-3"]


# --- Matchers -------------------------------------------------------------------------------------------------------

ODD = (
    "",
    "a",
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "tab\t",
    "a|b",
    ".*",
    "(",
    "$1",
    "{}",
    "`",
    "'",
    "日本",
    "é",
    "%",
)


def matched(matcher: promql.Matcher) -> tuple[str, str, str]:
    """Label, operator and value of a matcher, as a parser reads it in a selector."""
    (found,) = promql_parser.parse(promql.selector([matcher], "x").text).matchers.matchers
    return found.name, str(found.op), found.value


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.sampled_from(ODD))
def test_no_value_breaks_out_of_a_matcher(value: str) -> None:
    """A run id is data from outside: it arrives as it is, and nothing follows it."""
    assert matched(promql.equal("run", value)) == ("run", "MatchOp.Equal", value)
    assert matched(promql.not_equal("run", value)) == ("run", "MatchOp.NotEqual", value)


LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="[]^\\")


@settings(deadline=None)
@given(
    st.lists(st.text(LETTERS, min_size=1) | st.sampled_from([".*", "a|b", "(x)", "a+", "$", "{2}"]), min_size=1),
    st.text(),
)
def test_one_of_is_letter_by_letter(values: list[str], other: str) -> None:
    """A list of values matches those and no other, whatever they mean as a pattern."""
    label, operator, pattern = matched(promql.one_of("phase", values))
    assert (label, operator) == ("phase", "MatchOp.Re")
    compiled = re.compile(pattern)
    assert all(compiled.fullmatch(value) for value in values)
    assert bool(compiled.fullmatch(other)) == (other in values)


def test_a_dashboard_variable_stands_between_backticks() -> None:
    """Grafana puts a value into backticks without breaking the query, whatever quotes it has."""
    assert str(promql.variable("nemo_run_id", "run")) == "nemo_run_id=~`${run:regex}`"
    assert str(promql.variable("nemo.run.id", "run")) == '"nemo.run.id"=~`${run:regex}`'


@pytest.mark.parametrize(
    ("label", "written", "plain"),
    [
        ("run", "run", "run"),
        ("_x9", "_x9", "_x9"),
        ("nemo.run.id", '"nemo.run.id"', "nemo_run_id"),
        ("9lives", '"9lives"', "9lives"),
        ('a"b', '"a\\"b"', "a_b"),
        ("größe", '"größe"', "gr__e"),
    ],
)
def test_labels_are_quoted_where_they_must_be(label: str, written: str, plain: str) -> None:
    """A label of the classic syntax is bare, any other one quoted; its plain form has nothing but classic letters."""
    assert promql.label_name(label) == written
    assert promql.plain_label(label) == plain


def test_a_selector_without_matchers_is_a_name() -> None:
    """No empty braces behind the name of a recording rule."""
    assert str(promql.selector([], "run:x:y")) == "run:x:y"
    assert str(promql.selector([promql.equal("a", "b"), promql.matching("c", "d.*")])) == '{a="b",c=~"d.*"}'


# --- On a real Prometheus -------------------------------------------------------------------------------------------


def vector(value: float) -> Expr:
    """An instant vector of one number."""
    return promql.call("vector", value)


@pytest.mark.live
@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (vector(2) + vector(3) * vector(4), 14),
        ((vector(2) + vector(3)) * vector(4), 20),
        (vector(9) - (vector(5) - vector(3)), 7),
        (vector(9) - vector(5) - vector(3), 1),
        (24 - vector(4) * 2, 16),
        (vector(24) / (vector(6) / vector(2)), 8),
        ((vector(1) > 2).or_(vector(3)).and_(vector(4)), 3),
        (vector(1).unless(vector(2).unless(vector(3))), 1),
        (vector(1).and_(vector(2)).or_(vector(5)), 1),
        (vector(5) > (vector(3) > 2), 5),
        (promql.call("abs", -1 * vector(math.inf)).equals(promql.INFINITY), math.inf),
    ],
)
def test_prometheus_agrees(expr: Expr, value: float, prometheus_server: Prometheus) -> None:
    """Prometheus computes what was meant."""
    (sample,) = answer(prometheus_server, "query", query=expr.text)["result"]
    assert float(sample["value"][1]) == value


@pytest.mark.live
@pytest.mark.parametrize("value", ODD)
def test_prometheus_reads_odd_values(value: str, prometheus_server: Prometheus) -> None:
    """A value comes out of Prometheus as it went in."""
    named = promql.call("label_replace", vector(1), *map(promql.string, ("x", value.replace("$", "$$"), "", "")))
    (sample,) = answer(prometheus_server, "query", query=named.text)["result"]
    assert sample["metric"].get("x", "") == value


@pytest.fixture(scope="module")
def prometheus_server(prometheus2: Path) -> Any:
    """The oldest Prometheus we serve, without data."""
    with Prometheus(prometheus2) as server:
        yield server
