"""What a run has saved, what that took, and what it is worth on the validation set."""

from __future__ import annotations

from dashboards import promql, signals
from dashboards.promql import Expr
from dashboards.queries.values import finite, grown, latest, mean, remembered
from dashboards.scope import Scope
from emitter import catalog


def since_checkpoint(scope: Scope) -> Expr:
    """Time from the last complete checkpoint to the last sign of life: what is lost if the run dies now, or has died.

    Unit:    seconds, to the minute.
    No data: no checkpoint was completed in the dashboard's time range.
    """
    saved = latest(catalog.CHECKPOINT_LAST_SUCCESS_TIME, remembered(scope))
    return promql.call("clamp_min", signals.LAST_SEEN(scope) - saved, 0)


def last_checkpoint(scope: Scope) -> Expr:
    """Iteration of the last complete checkpoint."""
    return latest(catalog.CHECKPOINT_LAST_ITERATION, scope)


def failed_checkpoints(scope: Scope) -> Expr:
    """Checkpoints within the window that could not be saved."""
    return grown(catalog.CHECKPOINT_FAILURES, scope)


def save_time(scope: Scope) -> Expr:
    """Mean time to save a checkpoint.

    Unit: seconds.
    """
    return mean(catalog.CHECKPOINT_SAVE_DURATION, scope)


def load_time(scope: Scope) -> Expr:
    """Mean time to load a checkpoint.

    Unit: seconds.
    """
    return mean(catalog.CHECKPOINT_LOAD_DURATION, scope)


def evaluation_time(scope: Scope) -> Expr:
    """Mean time of an evaluation.

    Unit: seconds.
    """
    return mean(catalog.EVALUATION_DURATION, scope)


def validation_loss(scope: Scope) -> Expr:
    """Loss on the validation set where it is finite."""
    return finite(latest(catalog.VALIDATION_LOSS, scope))
