"""The named expressions behind panels and alerts; each takes a scope.

A panel and the alert about it call the same function, so they cannot disagree. Every result is one series per run
unless the docstring says otherwise, and empty some minutes after the run stops reporting.
"""

from __future__ import annotations

from dataclasses import replace

from dashboards import promql, signals
from dashboards.promql import INFINITY, TIME, Expr
from dashboards.scope import Scope, SeriesSettings
from dashboards.signals import by_run, per_process
from emitter import catalog
from emitter.catalog import Metric

# --- Progress -------------------------------------------------------------------------------------------------------

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


# --- Numbers --------------------------------------------------------------------------------------------------------

NONFINITE_INTERVALS = 3
NONFINITE_FLOOR_S = 600
"""A NaN is news for some log intervals, and for long enough to be seen."""


def latest(metric: Metric, scope: Scope) -> Expr:
    """The value of a gauge, the largest of a run's processes."""
    return by_run("max", scope.select(metric), scope)


def finite(vector: Expr) -> Expr:
    """The absolute values that are neither NaN nor Inf: what can be drawn and averaged."""
    return promql.call("abs", vector) < INFINITY


def loss(scope: Scope) -> Expr:
    """Training loss where it is finite."""
    return finite(latest(catalog.LOSS, scope))


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


def grown(metric: Metric, scope: Scope, by: tuple[str, ...] = ()) -> Expr:
    """How much a counter grew within the window; all of it, where the counter is younger.

    Shape: one series per run and value of `by`.
    """
    now = per_process(metric, scope)
    before = per_process(metric, scope.before(scope.window))
    return promql.aggregate("max", promql.call("clamp_min", (now - before).or_(now), 0), (scope.run, *by))


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


# --- Speed ----------------------------------------------------------------------------------------------------------

SLOW_RUN_LOGS = 2
"""A run with fewer log intervals in every window of the last hour is drawn over the hour, else it shows in pieces."""

COLLAPSE_RATIO = 0.7
"""30 % under the run's own median. Noise of a healthy run is about 0.1 %, one slow GPU costs 6 %."""

COLLAPSE_LOGS = 20
"""A process is compared with its own past only after twenty log intervals: warm-up and compilation lie behind it."""

SLOW_CADENCE_S = 90
"""Log interval from which the windows of a baseline are hours instead of minutes."""


def _per_window(scope: Scope, part: str, by: tuple[str, ...] = ()) -> Expr:
    """Growth of one part of the step time histogram: over the window, for slow runs over an hour."""

    def over(window: str, part: str, by: tuple[str, ...] = ()) -> Expr:
        return scope.by_spelling(
            catalog.STEP_DURATION, lambda s: promql.call("increase", s.range(window)), combine="sum", by=by, part=part
        )

    busiest = scope.by_spelling(
        catalog.STEP_DURATION,
        lambda s: promql.call(
            "max_over_time", promql.call("increase", s.range(scope.window)).range("1h", step=scope.window)
        ),
        combine="sum",
        part="count",
    )
    on = (scope.run,)
    in_window = over(scope.window, part, by).and_(over(scope.window, "count") > 0, on=on)
    return in_window.or_(over("1h", part, by).and_(busiest < SLOW_RUN_LOGS, on=on))


def step_time_mean(scope: Scope) -> Expr:
    """Mean wall time of a step.

    Unit:   milliseconds.
    Source: one observation per log interval, itself a mean.
    """
    return _per_window(scope, "sum") / (_per_window(scope, "count") > 0)


def step_time_quantile(quantile: float, scope: Scope) -> Expr:
    """Quantile of the log intervals' mean step times: no quantile of single steps can be had.

    Unit: milliseconds.
    """
    return promql.call("histogram_quantile", quantile, _per_window(scope, "bucket", by=("le",)))


def tokens_per_second(scope: Scope) -> Expr:
    """Tokens per second, all ranks together."""
    return latest(catalog.TOKENS_PER_SEC, scope)


def tokens_per_second_floor(scope: Scope) -> Expr:
    """The limit of ThroughputCollapse: a share of the median of the hours before.

    Unit: tokens per second.
    """
    usual = scope.by_spelling(
        catalog.TOKENS_PER_SEC, lambda s: promql.call("quantile_over_time", 0.5, s.range("6h", offset="10m"))
    )
    return usual * COLLAPSE_RATIO


def tokens_per_gpu(scope: Scope) -> Expr:
    """Tokens per second and GPU."""
    return tokens_per_second(scope) / world_size(scope)


def tflops(scope: Scope) -> Expr:
    """Model TFLOP/s per GPU."""
    return latest(catalog.THROUGHPUT_TFLOPS, scope)


def throughput_collapse(scope: Scope) -> Expr:
    """Runs far slower than their own median, over several log intervals.

    Unit: share of the usual speed.
    """
    speed = signals.SPEED(scope)

    def median(window: str, offset: str = "") -> Expr:
        return promql.call("quantile_over_time", 0.5, speed.range(window, offset=offset))

    slow = signals.CADENCE(scope) > SLOW_CADENCE_S
    hours = (median("1h") / median("6h", "1h")).and_(slow, on=(scope.run,))
    minutes = (median("5m") / median("6h", "10m")).unless(slow, on=(scope.run,))
    logs = signals.LOGS(scope)
    restarted = promql.call("resets", logs.range(scope.span)) > 0  # on the same target: the past is the predecessor's
    return by_run("min", hours.or_(minutes).and_(logs > COLLAPSE_LOGS).unless(restarted), scope) < COLLAPSE_RATIO


def memory_allocated(scope: Scope) -> Expr:
    """Peak memory allocated on the exporting rank.

    Unit: GiB.
    """
    return latest(catalog.MEMORY_ALLOCATED, scope)


# --- Choices and alerts ---------------------------------------------------------------------------------------------


def firing_alerts(scope: Scope) -> Expr:
    """Firing alerts of the chosen runs, where Prometheus evaluates the rules.

    Shape: one series per alert, severity and run.
    """
    matchers = (promql.equal("alertstate", "firing"), promql.not_equal("run", ""), promql.variable("run", "run"))
    return promql.aggregate("max", promql.selector(matchers, "ALERTS"), ("severity", "alertname", "run"))


def _choosable(label: str) -> promql.Matcher:
    """Values that a panel can quote: a backtick would end the quotation."""
    return promql.Matcher(label, "!~", promql.string(".*`.*"))


def run_choices(scope: Scope) -> Expr:
    """Every run seen in the dashboard's time range: live ones first, the latest start first.

    Unit: none; the value only orders. Rounded to ten minutes, so that live runs do not change places.
    """
    label = scope.series.run_label
    every = replace(scope, run_matcher=promql.not_equal(label, ""))
    extra = (_choosable(label),) if scope.series.identity == "label" else ()
    seen = (by_run("count", every.select_any(*signals.PRESENCE, matchers=extra), scope) * 0 + TIME).range("$__range")
    last, first = promql.call("max_over_time", seen), promql.call("min_over_time", seen)
    return promql.call("sort_desc", promql.call("floor", last / 600) + first / 10_000_000_000)


def watchdog(_scope: Scope) -> Expr:
    """Always true."""
    return promql.call("vector", 1)


def label_choices(label: str, scope: Scope) -> Expr:
    """Every value of one of the site's further labels in the dashboard's time range, whatever run has it.

    Shape: one series per value, with nothing but the label in its plain form.
    Unit:  none; the value only counts series.
    """
    series = SeriesSettings(namespace=scope.series.namespace)
    every = replace(scope, series=series, run_matcher=_choosable(label), matchers=(promql.not_equal(label, ""),))
    seen = promql.call("last_over_time", every.select_any(*signals.PRESENCE).range("$__range"))
    plain = promql.plain_label(label)
    return promql.aggregate("count", seen if plain == label else promql.copy_label(seen, label, plain), (plain,))


def remembered(scope: Scope) -> Scope:
    """The scope that still sees what a run said last within the dashboard's time range, ended or not."""
    return scope.before("", memory="$__range")
