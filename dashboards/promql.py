"""PromQL as values: expressions that add their own parentheses, and matchers that quote their values.

Standard library only. Nothing outside this module concatenates PromQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+|\$[a-z_]+")
_UNITS_S = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PARTS = re.compile("".join(f"(?:(?P<{unit}>[0-9]+){unit})?" for unit in _UNITS_S))


class Rank(IntEnum):
    """How tightly an expression binds, loosest first."""

    OR = 1
    AND = 2
    COMPARE = 3
    ADD = 4
    MULTIPLY = 5
    ATOM = 6


@dataclass(frozen=True)
class Expr:
    """An instant vector or scalar expression.

    `selector` marks an expression that takes a range or an offset directly; any other needs a subquery.
    """

    text: str
    rank: Rank = Rank.ATOM
    selector: bool = False

    def __str__(self) -> str:
        return self.text

    def __gt__(self, other: Expr | float) -> Expr:
        return self._binary(">", other, Rank.COMPARE)

    def __lt__(self, other: Expr | float) -> Expr:
        return self._binary("<", other, Rank.COMPARE)

    def __ge__(self, other: Expr | float) -> Expr:
        return self._binary(">=", other, Rank.COMPARE)

    def equals(self, other: Expr | float) -> Expr:
        """The samples equal to other."""
        return self._binary("==", other, Rank.COMPARE)

    def differs(self, other: Expr | float) -> Expr:
        """The samples not equal to other; compared with itself, the NaN samples."""
        return self._binary("!=", other, Rank.COMPARE)

    def __add__(self, other: Expr | float) -> Expr:
        return self._binary("+", other, Rank.ADD)

    def __sub__(self, other: Expr | float) -> Expr:
        return self._binary("-", other, Rank.ADD)

    def __rsub__(self, other: Expr | float) -> Expr:
        return _expr(other) - self

    def __mul__(self, other: Expr | float) -> Expr:
        return self._binary("*", other, Rank.MULTIPLY)

    __rmul__ = __mul__

    def __truediv__(self, other: Expr | float) -> Expr:
        return self._binary("/", other, Rank.MULTIPLY)

    def times(self, other: Expr, *, on: Sequence[str], group_left: Sequence[str]) -> Expr:
        """Many-to-one product: every sample keeps its labels and takes those of `group_left` from other."""
        return self._binary(f"* on ({', '.join(on)}) group_left ({', '.join(group_left)})", other, Rank.MULTIPLY)

    def over(self, other: Expr, *, on: Sequence[str]) -> Expr:
        """Many-to-one quotient: every sample keeps its labels, divided by the one that agrees in the labels `on`."""
        return self._binary(f"/ on ({', '.join(on)}) group_left ()", other, Rank.MULTIPLY)

    def and_(self, other: Expr, *, on: Sequence[str] | None = None) -> Expr:
        """The samples for which other has one too."""
        return self._binary(f"and{_on(on)}", other, Rank.AND)

    def unless(self, other: Expr, *, on: Sequence[str] | None = None) -> Expr:
        """The samples for which other has none."""
        return self._binary(f"unless{_on(on)}", other, Rank.AND)

    def or_(self, other: Expr, *, on: Sequence[str] | None = None) -> Expr:
        """These samples, and those of other that have no partner here."""
        return self._binary(f"or{_on(on)}", other, Rank.OR)

    def range(self, window: str, *, offset: str = "", step: str = "1m") -> str:
        """A range over the expression: of a selector itself, of anything else by a subquery."""
        text = self.text if self.selector else f"({self.text})"
        back = f" offset {_duration(offset)}" if offset else ""
        return f"{text}[{_duration(window)}{'' if self.selector else ':' + _duration(step)}]{back}"

    def _binary(self, operator: str, other: Expr | float, rank: Rank) -> Expr:
        right = _expr(other)
        # Operators of one rank group to the left, so a right side of the same rank needs parentheses.
        left_text = self.text if self.rank >= rank else f"({self.text})"
        right_text = right.text if right.rank > rank else f"({right.text})"
        return Expr(f"{left_text} {operator} {right_text}", rank)


def _expr(value: Expr | float) -> Expr:
    return value if isinstance(value, Expr) else Expr(number(value))


def _on(labels: Sequence[str] | None) -> str:
    return "" if labels is None else f" on ({', '.join(labels)})"


def _duration(text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise ValueError(f"dashboards.promql: a duration must be like '5m', '1h30m' or '$window' (got {text!r}).")
    return text


def seconds(duration: str) -> int:
    """Length of a duration as Prometheus writes it, units in falling order.

    Raises: ValueError if it is not one, or not longer than nothing.
    """
    parts = _PARTS.fullmatch(duration)
    length = sum(int(count) * _UNITS_S[unit] for unit, count in parts.groupdict("0").items()) if parts else 0
    if not length:
        raise ValueError(f"must be a duration like '30s', '5m' or '1h30m' (got {duration!r})")
    return length


def number(value: float) -> str:
    """A PromQL number literal."""
    return repr(float(value)).removesuffix(".0")


def string(value: str) -> str:
    r"""A quoted PromQL string; quotes, backslashes and line ends in value are escaped."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def label_name(label: str) -> str:
    """A label as a matcher and `by` write it: bare where the classic syntax allows it, else quoted (Prometheus 3)."""
    return label if _LABEL.fullmatch(label) else string(label)


def plain_label(label: str) -> str:
    """The label in the classic character set: `nemo.run.id` becomes `nemo_run_id`."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


@dataclass(frozen=True)
class Matcher:
    """One condition of a selector; `value` is a PromQL string literal, quotes included."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{label_name(self.label)}{self.operator}{self.value}"


def equal(label: str, value: str) -> Matcher:
    """The label has exactly this value."""
    return Matcher(label, "=", string(value))


def not_equal(label: str, value: str) -> Matcher:
    """The label has another value; with an empty one: the label exists."""
    return Matcher(label, "!=", string(value))


def one_of(label: str, values: Sequence[str]) -> Matcher:
    """The label has one of these values, letter by letter."""
    return Matcher(label, "=~", string("|".join(map(_literal, values))))


def _literal(text: str) -> str:
    """A regular expression that matches the text letter by letter."""
    return re.sub(r"([+*?()|\[\]{}^$\\])", r"\\\1", text).replace(".", "[.]")


def matching(label: str, pattern: str) -> Matcher:
    """The label matches a regular expression as a whole."""
    return Matcher(label, "=~", string(pattern))


def variable(label: str, name: str) -> Matcher:
    """The label has a value chosen in the dashboard variable `name`, whatever characters it has.

    Backticks: between quotes Grafana 9.4 lets a quote in a value break the query.
    """
    return Matcher(label, "=~", f"`${{{name}:regex}}`")


def selector(matchers: Sequence[Matcher], name: str = "") -> Expr:
    """An instant vector selector."""
    inside = ",".join(str(matcher) for matcher in matchers)
    return Expr(f"{name}{{{inside}}}" if inside else name, selector=True)


def offset(vector: Expr, back: str) -> Expr:
    """A selector as it was `back` ago."""
    if not vector.selector:
        raise ValueError(f"dashboards.promql: only a selector takes an offset (got {vector.text!r}).")
    return Expr(f"{vector.text} offset {_duration(back)}")


def call(function: str, *arguments: Expr | str | float) -> Expr:
    """A function call; text arguments are ranges and string literals, already rendered."""
    return Expr(f"{function}({', '.join(a if isinstance(a, str) else _expr(a).text for a in arguments)})")


def aggregate(operator: str, vector: Expr, by: Sequence[str]) -> Expr:
    """An aggregation that keeps the labels `by`."""
    return Expr(f"{operator} by ({', '.join(label_name(label) for label in by)}) ({vector.text})")


def count_values(label: str, vector: Expr, by: Sequence[str]) -> Expr:
    """How many samples have each value, with the value as a label."""
    return Expr(f"count_values by ({', '.join(by)}) ({string(label)}, {vector.text})")


def largest(vector: Expr, by: Sequence[str]) -> Expr:
    """The one largest sample of each group, with all of its labels; the first among equals."""
    return Expr(f"topk by ({', '.join(by)}) (1, {vector.text})")


def without_name(vector: Expr) -> Expr:
    """The vector with its metric names dropped; two spellings of one series become one."""
    return Expr(f"max without () ({vector.text})")


def set_label(vector: Expr, label: str, value: str) -> Expr:
    """The vector with a constant label."""
    return call("label_replace", vector, string(label), string(value), string(label), string(""))


def copy_label(vector: Expr, source: str, target: str) -> Expr:
    """The vector with the non-empty label `source` copied to `target`."""
    return call("label_replace", vector, string(target), string("$1"), string(source), string("(.+)"))


def any_of(*vectors: Expr) -> Expr:
    """The vectors joined by `or`: the first that has a sample wins."""
    joined = vectors[0]
    for vector in vectors[1:]:
        joined = joined.or_(vector)
    return joined


TIME = Expr("time()")
INFINITY = Expr("Inf")
