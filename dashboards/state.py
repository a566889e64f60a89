"""What a run does now, as a number that panels turn into a word: trouble first, by the alerts' own conditions."""

from __future__ import annotations

from enum import IntEnum

from dashboards import promql, signals
from dashboards.promql import Expr
from dashboards.queries import learning, progress, values
from dashboards.scope import Scope
from dashboards.signals import by_run, in_phase
from emitter import catalog


class State(IntEnum):
    """States of a run in order of trouble; a table sorted by them shows the worst first."""

    HUNG = 90
    NONFINITE = 80
    ZERO = 75
    VANISHED = 70
    SILENT = 60
    STARTUP = 40
    EVALUATE = 30
    CHECKPOINT = 20
    TRAIN = 10
    ENDED = 0


_BY_PHASE = {
    "startup": State.STARTUP,
    "evaluate": State.EVALUATE,
    "checkpoint": State.CHECKPOINT,
    "train": State.TRAIN,
    "ended": State.ENDED,
}


def _first(*conditions: tuple[Expr, State]) -> Expr:
    return promql.any_of(*(condition * 0 + state for condition, state in conditions))


def state(scope: Scope) -> Expr:
    """The first of the states that is true: an alert's condition, else the phase, else mere life.

    No data: the run exported nothing within the dashboard's time range.
    """
    in_range = values.remembered(scope)
    return _first(
        (progress.hung(scope), State.HUNG),
        (learning.loss_nonfinite(scope), State.NONFINITE),
        (learning.loss_zero(scope), State.ZERO),
        (by_run("max", progress.vanished(scope), scope), State.VANISHED),
        *((in_phase(scope, phase), state) for phase, state in _BY_PHASE.items() if state is not State.ENDED),
        (in_phase(in_range, "ended"), State.ENDED),
        (by_run("max", signals.LOGS(scope), scope), State.TRAIN),
        (by_run("max", signals.LOGS(in_range), scope), State.SILENT),
    )


def phase(scope: Scope) -> Expr:
    """The phase of a run as a state; one shorter than the graph's step is still seen."""

    def seen(name: str) -> Expr:
        at_work = scope.by_spelling(
            catalog.RUN_PHASE,
            lambda s: promql.call("max_over_time", s.range("$__rate_interval")),
            promql.equal("phase", name),
        )
        return at_work.equals(1)

    return _first(*((seen(name), state) for name, state in _BY_PHASE.items()))
