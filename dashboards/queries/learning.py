"""Whether a run learns: loss, gradients, learning rate; what is not finite, stands still or is skipped."""

from __future__ import annotations

from dashboards import promql, signals
from dashboards.promql import INFINITY, TIME, Expr
from dashboards.queries.values import finite, grown, latest
from dashboards.scope import Scope
from dashboards.signals import by_run
from emitter import catalog

NONFINITE_INTERVALS = 3
NONFINITE_FLOOR_S = 600
"""A NaN is news for some log intervals, and for long enough to be seen."""


def loss(scope: Scope) -> Expr:
    """Training loss where it is finite."""
    return finite(latest(catalog.LOSS, scope))


def loss_max(scope: Scope) -> Expr:
    """Largest loss of any rank where it is finite."""
    return finite(latest(catalog.LOSS_MAX, scope))


def grad_norm(scope: Scope) -> Expr:
    """Gradient norm where it is finite."""
    return finite(latest(catalog.GRAD_NORM, scope))


def learning_rate(scope: Scope) -> Expr:
    """Learning rate."""
    return latest(catalog.LEARNING_RATE, scope)


def nonfinite_now(scope: Scope) -> Expr:
    """Processes whose loss or gradient norm is NaN or Inf at this moment; only old SDKs export such a value."""
    values = (signals.LOSS(scope), signals.GRAD_NORM(scope))
    odd = [odd for v in values for odd in (v.differs(v), promql.call("abs", v).equals(INFINITY))]
    return by_run("count", promql.any_of(*odd), scope)


def _for_some_intervals(scope: Scope, moment: signals.Signal, intervals: int, floor_s: float) -> Expr:
    """The age of a moment, while it is younger than some of the run's log intervals."""
    age = TIME - moment(scope)
    return (age < floor_s).or_(age < signals.CADENCE(scope) * intervals)


def loss_nonfinite(scope: Scope) -> Expr:
    """Runs that saw a NaN or Inf within their last log intervals, by counter or by value.

    Unit: values counted by one process so far, at least 1.
    """
    recent = _for_some_intervals(scope, signals.NONFINITE_AT, NONFINITE_INTERVALS, NONFINITE_FLOOR_S)
    counted = by_run("max", signals.nonfinite_count(scope) > 0, scope)
    return counted.and_(recent).or_(nonfinite_now(scope))


FROZEN_LOGS = 10
"""Ten log intervals with the loss and the gradient norm both unchanged to the last bit: no training does that."""

FROZEN_LOGS_WITHOUT_GRAD_NORM = 50
"""A loss printed with few digits repeats itself dozens of times."""

FROZEN_S = 600


def loss_frozen(scope: Scope) -> Expr:
    """Runs whose loss stands still while steps go on: the NaN that an SDK dropped, where nothing counts NaN.

    Unit: log intervals since a value changed.
    """
    on = (scope.run,)
    logs = signals.logs_since_learned(scope)
    normed = (logs > FROZEN_LOGS).and_(signals.GRAD_NORM(scope), on=on)
    frozen = by_run("max", normed.or_(logs > FROZEN_LOGS_WITHOUT_GRAD_NORM), scope)
    recent = (TIME - signals.LAST_LEARNED(scope)) < FROZEN_S
    return frozen.and_(signals.LOSS(scope), on=on).unless(recent).unless(signals.nonfinite_count(scope), on=on)


def loss_zero(scope: Scope) -> Expr:
    """Runs past their warm-up whose loss is 0: Megatron exports that when a whole log interval was skipped."""
    zero = by_run("min", signals.LOSS(scope).equals(0), scope).and_(signals.settled(scope))
    return promql.call("max_over_time", zero.range("2m", step="15s"))


SKIPPED_INTERVALS = 2
SKIPPED_FLOOR_S = 600


def iterations_skipped(scope: Scope) -> Expr:
    """Runs past their warm-up that skipped an iteration within their last log intervals.

    Unit: iterations skipped by one process so far.
    """
    recent = _for_some_intervals(scope, signals.SKIPPED_AT, SKIPPED_INTERVALS, SKIPPED_FLOOR_S)
    return by_run("max", signals.skipped_count(scope) > 0, scope).and_(recent)


def skipped(scope: Scope) -> Expr:
    """Iterations skipped within the window."""
    return grown(catalog.SKIPPED_ITERS, scope)


def nonfinite(scope: Scope) -> Expr:
    """NaN and Inf values within the window, one series per run and signal."""
    return grown(catalog.NONFINITE, scope, by=catalog.NONFINITE.attributes)


def nonfinite_marks(scope: Scope) -> Expr:
    """1 where a run's loss or gradient norm was not finite: the red marks behind the loss."""
    counted = by_run("max", grown(catalog.NONFINITE, scope) > 0, scope)
    return counted.or_(nonfinite_now(scope)) * 0 + 1
