"""What the rules know of a run besides its metrics: when it last logged, its own cadence, when it ended.

Each signal has one definition and two forms. Prometheus evaluates it as a recording rule, which also remembers: it
reads its own last value. Grafana, which has no recording rules in old versions, and the panels get it in place, as
a subquery over the scope's span.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dashboards import promql
from dashboards.promql import TIME, Expr
from dashboards.scope import Scope
from emitter import catalog
from emitter.catalog import Metric

Query = Callable[[Scope], Expr]

GAP = "10m"
"""A series that pauses for less than this, as in a restart of Prometheus, is not taken for a new one."""

REMEMBERED_S = 7 * 86_400
"""A moment that recording rules carry forward is forgotten after a week: nobody is on call for that run."""


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A named expression; calling it gives the expression as the scope reads it."""

    name: str
    """Name of the recording rule, `level:metric:operations`."""
    now: Query
    """What is true at this instant."""
    in_place: Query | None = None
    """The signal without a memory, where that is more than `now`."""
    keep: Callable[[Expr, Scope], Expr] | None = None
    """What of its own last value a recording rule carries forward while `now` has nothing."""

    def __call__(self, scope: Scope) -> Expr:
        """The signal as a query of this scope."""
        if scope.recorded:
            return scope.record(self.name)
        return (self.in_place or self.now)(scope)

    def rule(self, scope: Scope) -> Expr:
        """The expression of the recording rule."""
        now = self.now(scope)
        if self.keep is None:
            return now
        last = promql.call("last_over_time", scope.record(self.name).range(GAP))
        return now.or_(self.keep(last, scope))


def carried(name: str, now: Query, keep: Callable[[Expr, Scope], Expr]) -> Signal:
    """The last value of something that is true now and then, and never falls."""
    return Signal(
        name=name,
        now=now,
        in_place=lambda scope: promql.call("max_over_time", now(scope).range(scope.span)),
        keep=keep,
    )


def moment(name: str, event: Query) -> Signal:
    """The last time at which an event was true, per run.

    Unit:    Unix time, seconds; as exact as the minute between two looks.
    No data: the event was not seen within the scope's span (in place) or within a week (recorded).
    """
    return carried(name, lambda scope: event(scope) * 0 + TIME, lambda last, _: last > TIME - REMEMBERED_S)


def by_run(operator: str, vector: Expr, scope: Scope) -> Expr:
    """One sample per run."""
    return promql.aggregate(operator, vector, (scope.run,))


def per_process(metric: Metric, scope: Scope, *matchers: promql.Matcher, part: str = "") -> Expr:
    """One sample per process, whatever the spelling; what tells processes apart stays on the labels."""
    return promql.without_name(scope.select(metric, *matchers, part=part))


def changed(query: Query, scope: Scope, memory: str = GAP) -> Expr:
    """The samples that differ from a minute ago, or are new; for a counter: those that grew."""
    now = query(scope)
    return now.unless(now.equals(query(scope.before("1m", memory=memory))))


PRESENCE = ((catalog.STEP_DURATION, "count"), (catalog.LOSS, ""), (catalog.RUN_PHASE, ""))
"""Metrics of which every run exports at least one as long as it lives."""


def _present(scope: Scope) -> Expr:
    return by_run("count", scope.select_any(*PRESENCE), scope)


def in_phase(scope: Scope, *phases: str) -> Expr:
    """1 for each run that is in one of these phases."""
    matcher = promql.one_of("phase", phases)
    return by_run("max", scope.select(catalog.RUN_PHASE, matcher).equals(1), scope)


def phases(scope: Scope) -> Expr:
    """A sample for each run whose emitter says in which phase the run is."""
    return by_run("max", scope.select(catalog.RUN_PHASE), scope)


LAST_WORDS = "3m"
"""A process that says `ended` and is gone may have been scraped once since: rules look once a minute at least."""


def ended(scope: Scope) -> Expr:
    """1 for each run that said lately that it has ended, unless a later process of it is at work.

    Past the staleness marker of a process that is gone, which hides the series from a plain look.
    """
    said = in_phase(scope.before("", memory=LAST_WORDS), "ended")
    return said.unless(in_phase(scope, *catalog.PHASES[:-1]), on=(scope.run,))


def _logs(scope: Scope) -> Expr:
    return per_process(catalog.STEP_DURATION, scope, part="count")


ALIVE = "3m"
"""A process that exports its metrics at all does so at least every three minutes."""


def logging_now(scope: Scope) -> Expr:
    """A sample for each run of which a process has just logged.

    From the series themselves, whatever the scope: recorded moments are as old as their last evaluation.
    """
    return by_run("max", changed(_logs, scope), scope)


def alive(scope: Scope) -> Expr:
    """A sample for each run of which a process exported log intervals just now.

    Not by the usual lookback of five minutes: a killed process whose series get no staleness marker is no hang.
    """
    return by_run("max", _logs(scope.before("", memory=ALIVE)), scope)


LOGS = Signal(name="process:megatron_training_logs:max", now=_logs)
"""Log intervals that each process has reported; its only heartbeat, since gauges are exported again for ever."""


def _logged(scope: Scope) -> Expr:
    return by_run("max", changed(LOGS, scope), scope)


LAST_LOG = moment("run:megatron_training_last_log:time", _logged)
"""When a run last reported a log interval. A restarted process counts as progress, a frozen predecessor does not."""

LAST_ACTIVE = moment(
    "run:megatron_training_last_active:time",
    lambda scope: _logged(scope).or_(in_phase(scope, "startup", "evaluate", "checkpoint")),
)
"""When a run last logged, or was at something that has no log lines."""

LAST_SEEN = moment("run:megatron_training_last_seen:time", _present)
"""When a run last exported anything."""

LAST_PHASE = moment("run:megatron_run_phase_last_seen:time", phases)
"""When a run last said in which phase it is; none for an emitter without phases."""

LAST_ENDED = moment("run:megatron_run_ended_last_seen:time", ended)
"""When a run was last seen in its end."""


def _cadence(scope: Scope) -> Expr:
    logged = (changed(LOGS, scope) * 0 + TIME).range(scope.span)
    between = promql.call("max_over_time", logged) - promql.call("min_over_time", logged)
    counted = promql.call("increase", LOGS(scope).range(scope.span))
    return by_run("max", between / (counted > 0) > 0, scope)


CADENCE = Signal(
    name="run:megatron_training_cadence:seconds",
    now=_cadence,
    keep=lambda last, scope: last.and_(LAST_LOG(scope)),
)
"""Seconds between two log intervals of a run, by the slowest of its processes within the span.

From each process's first to its last log: a hang does not count, nor does the time between two processes.
"""


WARM_UP_ITERATIONS = 100
WARM_UP_LOGS = 3


def settled(scope: Scope) -> Expr:
    """A sample for each run past its warm-up, in which fp16 training skips steps to find its loss scale.

    By iteration where it is exported, else by the number of log intervals; the second repeats the first one's skips.
    """
    iteration = by_run("max", scope.select(catalog.ITERATION), scope)
    logs = by_run("max", LOGS(scope), scope)
    return (iteration > WARM_UP_ITERATIONS).or_((logs > WARM_UP_LOGS).unless(iteration))


def nonfinite_count(scope: Scope) -> Expr:
    """NaN and Inf values that each process has counted, per signal."""
    return per_process(catalog.NONFINITE, scope, promql.one_of("signal", catalog.SIGNALS))


def skipped_count(scope: Scope) -> Expr:
    """Skipped iterations that each process has counted."""
    return per_process(catalog.SKIPPED_ITERS, scope)


NONFINITE_AT = moment(
    "run:megatron_training_nonfinite_last:time",
    lambda scope: by_run("max", changed(nonfinite_count, scope, memory="1h") > 0, scope),
)
"""When a run last counted a NaN or Inf."""

SKIPPED_AT = moment(
    "run:megatron_training_skipped_last:time",
    lambda scope: by_run("max", changed(skipped_count, scope, memory="1h") > 0, scope).and_(
        settled(scope.before("1m"))
    ),
)
"""When a run last skipped an iteration after its warm-up; the first skip of a counter that is born with it counts."""

LOSS = Signal(name="process:megatron_training_loss:max", now=lambda scope: per_process(catalog.LOSS, scope))
"""Loss of each process."""

GRAD_NORM = Signal(
    name="process:megatron_training_grad_norm:max", now=lambda scope: per_process(catalog.GRAD_NORM, scope)
)
"""Gradient norm of each process."""


def _learned(scope: Scope) -> Expr:
    return by_run("max", changed(LOSS, scope).or_(changed(GRAD_NORM, scope)), scope)


LAST_LEARNED = moment("run:megatron_training_values_changed:time", _learned)
"""When the loss or the gradient norm of a run last changed."""


LOGS_AT_LEARNED = carried(
    "process:megatron_training_logs_at_change:max",
    lambda scope: LOGS(scope).and_(_learned(scope), on=(scope.run,)),
    lambda last, scope: last.and_(LOGS(scope)),
)
"""Log intervals of each process when the loss or the gradient norm last changed."""


def logs_since_learned(scope: Scope) -> Expr:
    """Log intervals of each process since the loss or the gradient norm last changed."""
    at_start = promql.call("min_over_time", LOGS(scope).range(scope.span))
    return LOGS(scope) - LOGS_AT_LEARNED(scope).or_(at_start)


def _speed(scope: Scope) -> Expr:
    logs, milliseconds = LOGS(scope), per_process(catalog.STEP_DURATION, scope, part="sum")
    before = scope.before("5m")
    steps = logs - LOGS(before)
    spent = milliseconds - per_process(catalog.STEP_DURATION, before, part="sum")
    # A point that is 0 or withdrawn for a while does not turn tokens into steps.
    counts_tokens = per_process(catalog.TOKENS_PER_SEC, scope.before("", memory=GAP))
    return (per_process(catalog.TOKENS_PER_SEC, scope) > 0).or_((steps / (spent > 0) * 1000).unless(counts_tokens))


SPEED = Signal(name="process:megatron_training_speed:rate", now=_speed)
"""Speed of each process: tokens per second, else steps per second. Only its own past is a measure for it."""

SIGNALS: tuple[Signal, ...] = (
    LOGS,
    LOSS,
    GRAD_NORM,
    SPEED,
    LAST_LOG,
    LAST_ACTIVE,
    LAST_SEEN,
    LAST_PHASE,
    LAST_ENDED,
    CADENCE,
    NONFINITE_AT,
    SKIPPED_AT,
    LAST_LEARNED,
    LOGS_AT_LEARNED,
)
"""In the order in which recording rules evaluate them: each stands only on those before it."""
