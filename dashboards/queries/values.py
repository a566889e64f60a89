"""What is read of a gauge or a counter of a run, whatever the metric."""

from __future__ import annotations

from dashboards import promql
from dashboards.promql import INFINITY, Expr
from dashboards.scope import Scope
from dashboards.signals import by_run, per_process
from emitter.catalog import Metric


def latest(metric: Metric, scope: Scope) -> Expr:
    """The value of a gauge, the largest of a run's processes."""
    return by_run("max", scope.select(metric), scope)


def finite(vector: Expr) -> Expr:
    """The absolute values that are neither NaN nor Inf: what can be drawn and averaged."""
    return promql.call("abs", vector) < INFINITY


def grown(metric: Metric, scope: Scope, by: tuple[str, ...] = ()) -> Expr:
    """How much a counter grew within the window; all of it, where the counter is younger.

    Shape: one series per run and value of `by`.
    """
    now = per_process(metric, scope)
    before = per_process(metric, scope.before(scope.window))
    return promql.aggregate("max", promql.call("clamp_min", (now - before).or_(now), 0), (scope.run, *by))


def remembered(scope: Scope) -> Scope:
    """The scope that still sees what a run said last within the dashboard's time range, ended or not."""
    return scope.before("", memory="$__range")
