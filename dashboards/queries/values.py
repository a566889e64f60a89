"""What is read of a gauge, a counter or a histogram of a run, whatever the metric."""

from __future__ import annotations

from dashboards import promql
from dashboards.promql import INFINITY, Expr, Matcher
from dashboards.scope import Scope
from dashboards.signals import GAP, Query, per_process
from emitter.catalog import Metric


def latest(metric: Metric, scope: Scope, *matchers: Matcher, by: tuple[str, ...] = ()) -> Expr:
    """The value of a gauge, the largest of a run's processes.

    Shape: one series per run and value of `by`.
    """
    return promql.aggregate("max", scope.select(metric, *matchers), (scope.run, *by))


def finite(vector: Expr) -> Expr:
    """The absolute values that are neither NaN nor Inf: what can be drawn and averaged."""
    return promql.call("abs", vector) < INFINITY


def _change(metric: Metric, scope: Scope, part: str = "") -> Expr:
    """Difference of each process to a window ago; a pause of its series, as in an outage of a scrape, is bridged."""
    before = scope.before(scope.window, memory=GAP)
    return per_process(metric, scope, part=part) - per_process(metric, before, part=part)


def grown(metric: Metric, scope: Scope, by: tuple[str, ...] = ()) -> Expr:
    """How much a counter grew within the window; all of it, where the counter is younger or began anew.

    Shape: one series per run and value of `by`.
    """
    growth = (_change(metric, scope) >= 0).or_(per_process(metric, scope))
    return promql.aggregate("max", growth, (scope.run, *by))


def mean(metric: Metric, scope: Scope, by: tuple[str, ...] = ()) -> Expr:
    """Mean of what a histogram observed within the window, in the process where it is largest.

    Shape:   one series per run and value of `by`.
    No data: nothing was observed within the window.
    """
    counted = _change(metric, scope, "count")
    within = _change(metric, scope, "sum") / (counted > 0)
    total, count = (per_process(metric, scope, part=part) for part in ("sum", "count"))
    whole = (total / count).unless(counted >= 0)  # the histogram is younger than the window, or began anew
    return promql.aggregate("max", within.or_(whole), (scope.run, *by))


def remembered(scope: Scope) -> Scope:
    """The scope that still sees what a run said last within the dashboard's time range, ended or not."""
    return scope.before("", memory="$__range")


def last_known(query: Query, scope: Scope) -> Expr:
    """What a query says now, else what it said last; an attempt that went back hides the one before it."""
    return query(scope).or_(query(remembered(scope)))
