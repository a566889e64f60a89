"""How fast a run is."""

from __future__ import annotations

from dashboards import promql, signals
from dashboards.promql import Expr
from dashboards.queries.progress import world_size
from dashboards.queries.values import latest
from dashboards.scope import Scope
from dashboards.signals import by_run
from emitter import catalog

SLOW_RUN_LOGS = 2
"""A run with fewer log intervals in every window of the last hour is drawn over the hour, else it shows in pieces."""

COLLAPSE_RATIO = 0.7
"""30 % under the run's own median. Noise of a healthy run is about 0.1 %, one slow GPU costs 6 %."""

COLLAPSE_LOGS = 20
"""A process is compared with its own past only after twenty log intervals: warm-up and compilation lie behind it."""

SLOW_CADENCE_S = 90
"""Log interval from which the windows of a baseline are hours instead of minutes."""


DAY_S = 86_400
BILLION = 1e9


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


def tokens_per_node_and_day(scope: Scope) -> Expr:
    """Tokens that one node processes in a day.

    Unit:    billions (1e9) of tokens per node and day.
    No data: the number of GPUs of the run or of a node is not known.
    """
    nodes = world_size(scope) / latest(catalog.GPUS_PER_NODE, scope)
    return tokens_per_second(scope) * DAY_S / BILLION / nodes


def tflops(scope: Scope) -> Expr:
    """Model TFLOP/s per GPU."""
    return latest(catalog.THROUGHPUT_TFLOPS, scope)


def mfu(scope: Scope) -> Expr:
    """Model FLOP/s utilization.

    Unit: share.
    """
    return latest(catalog.MFU, scope)


def data_loading_time(scope: Scope) -> Expr:
    """Mean time that a step waits for data.

    Unit: seconds.
    """
    return latest(catalog.DATA_LOADING_TIME, scope)


def data_loading_share(scope: Scope) -> Expr:
    """Share of the step time spent waiting for data."""
    return latest(catalog.DATA_LOADING_SHARE, scope)


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
