"""What the run has saved, and what it is worth: a row of `training-run`."""

from __future__ import annotations

from dashboards import style
from dashboards.dashboard import Panel, Row
from dashboards.ids import RunPanel
from dashboards.queries import checkpoints, values
from dashboards.scope import Scope
from emitter import catalog


def row(scope: Scope) -> Row:
    """How much work would be lost, and whether saving works."""
    return style.row(
        "Checkpoints and evaluation",
        since_checkpoint_panel(scope),
        last_checkpoint_panel(scope),
        failed_checkpoints_panel(scope),
        checkpoint_time_panel(scope),
        validation_loss_panel(scope),
    )


def since_checkpoint_panel(scope: Scope) -> Panel:
    """Work that is in no checkpoint."""
    return style.stat(
        id=RunPanel.SINCE_CHECKPOINT,
        title="Work since the last checkpoint",
        description="Time from the last complete checkpoint to the run's last sign of life: what is lost if it dies "
        "now, or what it lost when it died; unmodified Megatron-LM does not export checkpoints.",
        unit="seconds",
        queries=(style.now(scope, checkpoints.since_checkpoint(scope)),),
        needs=(catalog.CHECKPOINT_LAST_SUCCESS_TIME,),
        no_value="none exported",
        width=6,
        height=6,
        decimals=1,
    )


def last_checkpoint_panel(scope: Scope) -> Panel:
    """Where a restart would go on."""
    return style.stat(
        id=RunPanel.LAST_CHECKPOINT,
        title="Last checkpoint",
        description="Iteration of the last complete checkpoint, from which a restart goes on; also of a run that is "
        "gone.",
        unit=catalog.CHECKPOINT_LAST_ITERATION.unit,
        queries=(style.now(scope, values.last_known(checkpoints.last_checkpoint, scope)),),
        needs=(catalog.CHECKPOINT_LAST_ITERATION,),
        no_value="none exported",
        width=6,
        height=6,
    )


def failed_checkpoints_panel(scope: Scope) -> Panel:
    """Checkpoints that could not be saved."""
    return style.timeseries(
        id=RunPanel.FAILED_CHECKPOINTS,
        title="Failed checkpoints",
        description="Checkpoints that could not be saved within the window before each moment; zero is healthy, and "
        "with any other number the work at risk grows.",
        unit=catalog.CHECKPOINT_FAILURES.unit,
        queries=(style.line(scope, checkpoints.failed_checkpoints(scope)),),
        needs=(catalog.CHECKPOINT_FAILURES,),
        bars=True,
        height=6,
    )


def checkpoint_time_panel(scope: Scope) -> Panel:
    """What checkpoints and evaluations cost."""
    return style.timeseries(
        id=RunPanel.CHECKPOINT_TIME,
        title="Time of checkpoints and evaluations",
        description="Mean of what ended within the window before each moment, so each save, load or evaluation is a "
        "dash as long as the window; saves that take longer and longer are a file system in trouble.",
        unit="seconds",
        queries=(
            style.line(scope, checkpoints.save_time(scope), "save"),
            style.line(scope, checkpoints.load_time(scope), "load"),
            style.line(scope, checkpoints.evaluation_time(scope), "evaluation"),
        ),
        needs=(catalog.CHECKPOINT_SAVE_DURATION, catalog.CHECKPOINT_LOAD_DURATION, catalog.EVALUATION_DURATION),
        no_value="none in this time range",
    )


def validation_loss_panel(scope: Scope) -> Panel:
    """Loss on data that the run does not train on."""
    return style.timeseries(
        id=RunPanel.VALIDATION_LOSS,
        title="Validation loss",
        description="Loss of the last evaluation; falls with the training loss, and rises while that falls when the "
        "model learns by heart.",
        unit=catalog.VALIDATION_LOSS.unit,
        queries=(style.line(scope, checkpoints.validation_loss(scope)),),
        needs=(catalog.VALIDATION_LOSS,),
    )
