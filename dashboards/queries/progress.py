"""Where a run is, whether it goes on, and what it costs when it does not."""

from __future__ import annotations

from dashboards import promql, signals
from dashboards.promql import TIME, Expr
from dashboards.queries.values import latest
from dashboards.scope import Scope
from dashboards.signals import by_run
from emitter import catalog

HANG_INTERVALS = 3
"""A run that misses three of its own log intervals is not just slow."""

HANG_FLOOR_S = 300
"""Garbage collection, a stalled file system or a retried collective may hold a fast run for minutes."""

HANG_FLOOR_WITHOUT_PHASES_S = 1_200
"""An emitter that cannot say 'evaluating' or 'saving': both, back to back, may take more than 15 minutes."""

HANG_YOUNG_LOGS = 3
"""A process with no more logs may have come back with another log interval: it gets the longer floor."""

HANG_ANY_PHASE_S = 7_200
"""No phase excuses two hours without a log line: a run may hang inside its evaluation."""


def silence(scope: Scope) -> Expr:
    """Time since a run last reported a log interval.

    Unit: seconds.
    """
    return TIME - signals.LAST_LOG(scope)


def hung(scope: Scope) -> Expr:
    """Runs that made progress before and make none now, alive, not ended, not at an evaluation or a checkpoint.

    Unit: seconds since the last log interval.
    """
    patience = HANG_ANY_PHASE_S - HANG_FLOOR_S
    inactive = TIME - signals.LAST_ACTIVE(scope)
    excused = silence(scope) - patience  # what remains once every phase's excuse is used up
    idle = (excused > inactive).or_(inactive)
    knows_itself = by_run("max", signals.LOGS(scope), scope) > HANG_YOUNG_LOGS
    prompt = (idle > HANG_FLOOR_S).and_(signals.phases(scope)).and_(knows_itself)
    enough = prompt.or_(idle > HANG_FLOOR_WITHOUT_PHASES_S)
    missed = enough > signals.CADENCE(scope) * HANG_INTERVALS
    unknown = (silence(scope) > HANG_ANY_PHASE_S).unless(signals.CADENCE(scope))  # a run that logged once
    still = silence(scope).and_(missed.or_(unknown)).unless(signals.logging_now(scope))
    return still.and_(signals.alive(scope)).unless(signals.ended(scope))


GONE_S = 900
"""A restart takes a process away for some minutes; one that says 'startup' is back at once."""

GONE_WITHOUT_PHASES_S = 2_700
"""Without phases nothing is exported before the first log: start-up and compilation look like absence."""

GONE_FORGOTTEN_S = 18_000
"""After five hours a vanished run is history, not an incident; Grafana's form looks back for six."""

_END_GRACE_S = 180


def vanished(scope: Scope) -> Expr:
    """Runs that were alive and stopped reporting without an end.

    Shape: label `signals` is `yes` where the emitter says phases (so it would have said 'ended'), else `no`.
    Unit:  seconds since anything was exported.
    """
    gone = TIME - signals.LAST_SEEN(scope)
    missed = (gone > GONE_S).unless(gone < signals.CADENCE(scope) * HANG_INTERVALS)
    over = signals.LAST_ENDED(scope) > signals.LAST_SEEN(scope) - _END_GRACE_S
    told = promql.set_label(missed.and_(signals.LAST_PHASE(scope)), "signals", "yes")
    mute = promql.set_label((missed > GONE_WITHOUT_PHASES_S).unless(signals.LAST_PHASE(scope)), "signals", "no")
    return (told.or_(mute) < GONE_FORGOTTEN_S).unless(over, on=(scope.run,))


def iteration(scope: Scope) -> Expr:
    """Last finished iteration."""
    return latest(catalog.ITERATION, scope)


def target_iteration(scope: Scope) -> Expr:
    """Iteration at which the run is complete."""
    return latest(catalog.TARGET_ITERATION, scope)


def eta(scope: Scope) -> Expr:
    """Time until the target iteration at the speed of the last hour.

    Unit:    seconds.
    No data: no iteration exported, or no progress within the hour.
    """
    speed = scope.by_spelling(catalog.ITERATION, lambda s: promql.call("deriv", s.range("1h")))
    return (target_iteration(scope) - iteration(scope)) / (speed > 0)


def world_size(scope: Scope) -> Expr:
    """GPUs of a run: exported, else as the site's settings say."""
    exported = latest(catalog.WORLD_SIZE, scope)
    if not scope.world_size:
        return exported
    seen = by_run("count", scope.select_any(*signals.PRESENCE), scope)
    return exported.or_(seen * 0 + scope.world_size)


def with_gpus(vector: Expr, scope: Scope) -> Expr:
    """The runs of a vector with the number of their GPUs as label `gpus`: what trouble costs, in a text.

    The label is empty where nothing says the number. It changes only with the number, so no alert starts anew.
    """
    lately = world_size(scope).or_(world_size(scope.before("", memory=scope.span)))
    sizes = promql.count_values("gpus", lately, (scope.run,))
    known = sizes.or_(signals.LAST_SEEN(scope) * 0 + 1, on=(scope.run,))
    return vector.times(known, on=(scope.run,), group_left=("gpus",))
