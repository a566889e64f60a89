"""What happens inside of one iteration: Megatron's timers across ranks, and spans."""

from __future__ import annotations

from dashboards import promql
from dashboards.promql import Expr
from dashboards.queries.values import latest, mean
from dashboards.scope import Scope
from dashboards.signals import by_run
from emitter import catalog

SHORT_PHASE_SHARE = 0.01
"""Ratios of phases shorter than a hundredth of the longest are the timers' noise, and no rank waits for them."""


def phase_time(scope: Scope, agg: str = "max") -> Expr:
    """Time of each phase of an iteration on its slowest rank, or with `min` on its fastest.

    Shape: one series per run and phase.
    Unit:  seconds.
    """
    return latest(catalog.TIMER_DURATION, scope, promql.equal("agg", agg), by=("phase",))


def phase_spread(scope: Scope) -> Expr:
    """Slowest rank / fastest rank of each phase that is not short.

    Shape: one series per run and phase.
    """
    slowest = phase_time(scope)
    share = slowest.over(by_run("max", slowest, scope), on=(scope.run,))
    return (slowest / (phase_time(scope, "min") > 0)).and_(share > SHORT_PHASE_SHARE)


def span_time(scope: Scope) -> Expr:
    """Mean duration of the spans of each name.

    Shape: one series per run and span.
    Unit:  seconds.
    """
    return mean(catalog.SPAN_DURATION, scope, by=("span",))
