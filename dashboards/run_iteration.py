"""Inside of an iteration: a row of `training-run`, folded, for emitters that export timers or spans."""

from __future__ import annotations

from dashboards import style
from dashboards.dashboard import Panel, Row
from dashboards.ids import RunPanel
from dashboards.queries import iteration
from dashboards.scope import Scope
from emitter import catalog


def row(scope: Scope) -> Row:
    """Which phase is slow, and whether one rank makes it so."""
    return style.row(
        "Phases of an iteration (Megatron's timers, spans)",
        phase_time_panel(scope),
        phase_spread_panel(scope),
        span_time_panel(scope),
        collapsed=True,
    )


def phase_time_panel(scope: Scope) -> Panel:
    """Time of each phase."""
    return style.timeseries(
        id=RunPanel.PHASE_TIME,
        title="Phases, slowest rank",
        description="Time of each phase of an iteration on the rank where it is longest, by Megatron-LM's timers; "
        "forward-backward and optimizer contain other phases.",
        unit=catalog.TIMER_DURATION.unit,
        queries=(style.line(scope, iteration.phase_time(scope), by="phase"),),
        needs=(catalog.TIMER_DURATION,),
        height=10,
    )


def phase_spread_panel(scope: Scope) -> Panel:
    """Ranks that others wait for."""
    return style.timeseries(
        id=RunPanel.PHASE_SPREAD,
        title="Phases, slowest rank / fastest rank",
        description="About 1 where all ranks are alike; a computing phase that rises and stays up has a straggler, "
        "while communication phases of the other ranks are long because they wait for it.",
        unit="none",
        queries=(style.line(scope, iteration.phase_spread(scope), by="phase"),),
        needs=(catalog.TIMER_DURATION,),
        height=10,
        decimals=2,
    )


def span_time_panel(scope: Scope) -> Panel:
    """Time of each span."""
    return style.timeseries(
        id=RunPanel.SPAN_TIME,
        title="Spans, mean duration",
        description="Mean of the spans that ended within the window before each moment on the exporting rank; which "
        "there are is chosen by the span groups.",
        unit=catalog.SPAN_DURATION.unit,
        queries=(style.line(scope, iteration.span_time(scope), by="span"),),
        needs=(catalog.SPAN_DURATION,),
        width=24,
        height=10,
    )
