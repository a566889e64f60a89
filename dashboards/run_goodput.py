"""Attempts, and what the run's time is spent on: a row of `training-run`."""

from __future__ import annotations

from dashboards import palette, style
from dashboards.dashboard import Panel, Row
from dashboards.ids import RunPanel
from dashboards.queries import goodput
from dashboards.scope import Scope
from emitter import catalog


def row(scope: Scope) -> Row:
    """Whether the run's time is training, and what it is where it is not."""
    return style.row(
        "Attempts and goodput",
        goodput_panel(scope),
        attempt_panel(scope),
        time_shares_panel(scope),
    )


def goodput_panel(scope: Scope) -> Panel:
    """Share of the time that was training."""
    return style.stat(
        id=RunPanel.GOODPUT,
        title="Goodput",
        description="Share of the run's time in the dashboard's time range that was steps at their usual pace; the "
        "time between two attempts, in which no process counts, is in no share.",
        unit="share",
        queries=(style.now(scope, goodput.time_share(scope, "$__range", goodput.PRODUCTIVE)),),
        needs=(catalog.RUN_TIME,),
        no_value="not exported",
        height=8,
        decimals=1,
    )


def attempt_panel(scope: Scope) -> Panel:
    """Restarts."""
    return style.timeseries(
        id=RunPanel.ATTEMPT,
        title="Attempt",
        description="Number of the attempt, counted from 0: each step up is a restart, and a hole is the time "
        "without a process.",
        unit=catalog.RUN_ATTEMPT.unit,
        queries=(style.line(scope, goodput.attempt(scope)),),
        needs=(catalog.RUN_ATTEMPT,),
        width=8,
        steps=True,
    )


def time_shares_panel(scope: Scope) -> Panel:
    """Where the time goes."""
    return style.shares(
        id=RunPanel.TIME_SHARES,
        title="Where the time goes",
        description="Shares of the window before each moment; green is training, what lies on it is lost to start-up, "
        "evaluation, checkpoints, restarts or stalled steps, and with several runs chosen each has its own 100 %.",
        unit="share",
        queries=(
            style.line(scope, goodput.time_share(scope, scope.window, goodput.PRODUCTIVE), by="bucket"),
            style.line(scope, goodput.time_share(scope, scope.window, goodput.LOST), by="bucket"),
        ),
        needs=(catalog.RUN_TIME,),
        colors=palette.BUCKETS,
        no_value="not exported",
    )
