"""`training-run`: one run, the page to open at 3 am. The verdict first, then what it rests on.

Each row below the first screen is a module of its own, `run_*.py`.
"""

from __future__ import annotations

from dashboards import ids, run_checkpoints, run_data, run_goodput, run_iteration, run_speed, signals, state, style
from dashboards.dashboard import Dashboard, Panel, View
from dashboards.ids import RunPanel
from dashboards.queries import learning, progress, values
from dashboards.scope import Scope
from emitter import catalog


def dashboard(view: View) -> Dashboard:
    """The dashboard of a site."""
    scope = view.scope
    return Dashboard(
        uid=ids.RUN,
        title="Training run",
        description="Is the run dead, slow or diverging, or is only its telemetry broken; since when, at what cost.",
        variables=style.variables(view),
        rows=(
            style.row(
                "Verdict",
                state_panel(scope),
                since_progress_panel(scope),
                iteration_panel(scope),
                target_iteration_panel(scope),
                eta_panel(scope),
                gpus_panel(scope),
                firing_alerts_panel(view),
                phase_panel(scope),
            ),
            style.row(
                "Learning",
                loss_panel(scope),
                grad_norm_panel(scope),
                learning_rate_panel(scope),
                skipped_panel(scope),
                nonfinite_panel(scope),
            ),
            run_speed.row(scope),
            run_checkpoints.row(scope),
            run_goodput.row(scope),
            run_iteration.row(scope),
            run_data.row(scope),
        ),
    )


# --- Verdict --------------------------------------------------------------------------------------------------------


def state_panel(scope: Scope) -> Panel:
    """What the run does now, in one word."""
    return style.state(
        id=RunPanel.STATE,
        title="State",
        description="The worst that holds now: an alert's own condition in capitals, else the phase the run is in; "
        "grey means that nothing of it was seen in the time range.",
        unit="none",
        queries=(style.now(scope, state.state(scope)),),
        needs=(catalog.STEP_DURATION,),
        no_value="not seen",
    )


def since_progress_panel(scope: Scope) -> Panel:
    """Time since the last log interval."""
    return style.stat(
        id=RunPanel.SINCE_PROGRESS,
        title="Since progress",
        description="Time since the run last finished a log interval; red as soon as TrainingHung is true, which waits "
        "for several intervals of the run's own length, and gray once the run exports nothing any more.",
        unit="seconds",
        queries=(
            style.now(
                scope, progress.silence(scope).and_(signals.alive(scope)).unless(progress.hung(scope)), role="good"
            ),
            style.now(scope, progress.hung(scope), role="bad"),
            style.now(scope, progress.silence(scope).unless(signals.alive(scope))),
        ),
        needs=(catalog.STEP_DURATION,),
        no_value="not seen",
        decimals=1,
    )


def iteration_panel(scope: Scope) -> Panel:
    """Where the run is."""
    return style.stat(
        id=RunPanel.ITERATION,
        title="Iteration",
        description="Last finished iteration, also of a run that has ended; unmodified Megatron-LM does not export it.",
        unit=catalog.ITERATION.unit,
        queries=(style.now(scope, values.last_known(progress.iteration, scope)),),
        needs=(catalog.ITERATION,),
        no_value="not exported",
    )


def target_iteration_panel(scope: Scope) -> Panel:
    """Where the run shall end."""
    return style.stat(
        id=RunPanel.TARGET_ITERATION,
        title="Target iteration",
        description="Iteration at which the run is complete; unmodified Megatron-LM does not export it.",
        unit=catalog.TARGET_ITERATION.unit,
        queries=(style.now(scope, values.last_known(progress.target_iteration, scope)),),
        needs=(catalog.TARGET_ITERATION,),
        no_value="not exported",
    )


def eta_panel(scope: Scope) -> Panel:
    """Time until the run is complete."""
    return style.stat(
        id=RunPanel.ETA,
        title="Time left",
        description="Time until the target iteration at the speed of the last hour; empty while the run stands still "
        "or exports no iteration.",
        unit="seconds",
        queries=(style.now(scope, progress.eta(scope).unless(progress.hung(scope))),),
        needs=(catalog.ITERATION, catalog.TARGET_ITERATION),
        no_value="unknown",
        decimals=1,
    )


def gpus_panel(scope: Scope) -> Panel:
    """How many GPUs stand idle when the run does."""
    return style.stat(
        id=RunPanel.GPUS,
        title="GPUs",
        description="GPUs that wait while the run does not progress; where the emitter does not export it, set "
        "`run.world_size` in site.yaml.",
        unit=catalog.WORLD_SIZE.unit,
        queries=(style.now(scope, values.last_known(progress.world_size, scope)),),
        needs=(catalog.WORLD_SIZE,),
        no_value="not exported",
    )


def firing_alerts_panel(view: View) -> Panel:
    """The alerts of the run."""
    return style.firing_alerts(
        view,
        id=RunPanel.FIRING_ALERTS,
        title="Firing alerts",
        description="Alerts of the chosen run; each links to its page of the runbook.",
    )


def phase_panel(scope: Scope) -> Panel:
    """What the run did over time."""
    return style.timeline(
        id=RunPanel.PHASE,
        title="Phase",
        description="What the run said it was doing; a hole is time without telemetry, and unmodified Megatron-LM "
        "says nothing.",
        unit="none",
        queries=(style.line(scope, state.phase(scope)),),
        needs=(catalog.RUN_PHASE,),
        width=12,
        height=6,
    )


# --- Learning -------------------------------------------------------------------------------------------------------


def loss_panel(scope: Scope) -> Panel:
    """Training loss."""
    return style.timeseries(
        id=RunPanel.LOSS,
        title="Loss",
        description="Falls, then flattens; a red bar is a window in which loss or gradient norm was NaN or Inf.",
        unit=catalog.LOSS.unit,
        queries=(
            style.line(scope, learning.loss(scope)),
            style.marks(scope, learning.nonfinite_marks(scope), "not finite"),
        ),
        needs=(catalog.LOSS,),
        width=24,
        height=9,
    )


def grad_norm_panel(scope: Scope) -> Panel:
    """Gradient norm."""
    return style.timeseries(
        id=RunPanel.GRAD_NORM,
        title="Gradient norm",
        description="Steady after warm-up; it often leaps a little before the loss does.",
        unit=catalog.GRAD_NORM.unit,
        queries=(style.line(scope, learning.grad_norm(scope)),),
        needs=(catalog.GRAD_NORM,),
    )


def learning_rate_panel(scope: Scope) -> Panel:
    """Learning rate."""
    return style.timeseries(
        id=RunPanel.LEARNING_RATE,
        title="Learning rate",
        description="Follows its schedule; a leap after a restart means that the schedule was not restored.",
        unit=catalog.LEARNING_RATE.unit,
        queries=(style.line(scope, learning.learning_rate(scope)),),
        needs=(catalog.LEARNING_RATE,),
    )


def skipped_panel(scope: Scope) -> Panel:
    """Skipped iterations."""
    return style.timeseries(
        id=RunPanel.SKIPPED,
        title="Skipped iterations",
        description="Iterations without an update within the window before each moment; a few at the start are the "
        "search for a loss scale.",
        unit=catalog.SKIPPED_ITERS.unit,
        queries=(style.line(scope, learning.skipped(scope)),),
        needs=(catalog.SKIPPED_ITERS,),
        bars=True,
        height=6,
    )


def nonfinite_panel(scope: Scope) -> Panel:
    """NaN and Inf values."""
    return style.timeseries(
        id=RunPanel.NONFINITE,
        title="NaN and Inf",
        description="Values that were not finite within the window before each moment; zero is healthy, and empty "
        "means that nothing counts them.",
        unit=catalog.NONFINITE.unit,
        queries=(style.line(scope, learning.nonfinite(scope), by="signal"),),
        needs=(catalog.NONFINITE,),
        bars=True,
        height=6,
    )
