"""The run stands still, or is gone."""

from alerts.rule import AlertRule, RuleGroup, Severity, Text
from dashboards import ids
from dashboards.queries import progress

TRAINING_HUNG = AlertRule(
    name="TrainingHung",
    expr=lambda scope: progress.with_gpus(progress.hung(scope), scope),
    severity=Severity.PAGE,
    summary=Text("Run {run} hangs: no progress for {value:duration}."),
    description=Text(
        "The run is alive and logs nothing: its last log interval ended {value:duration} ago, several times its usual "
        "one, and it is not at an evaluation or a checkpoint. Idle since then: {gpus}."
    ),
    panel=(ids.RUN, ids.RunPanel.SINCE_PROGRESS),
    no_data="silent; TrainingVanished covers a run that stops reporting",
)

TRAINING_VANISHED = AlertRule(
    name="TrainingVanished",
    expr=lambda scope: progress.with_gpus(progress.vanished(scope), scope),
    severity=Severity.PAGE,
    severity_without_signals=Severity.TICKET,
    summary=Text("Run {run} is gone: nothing heard for {value:duration}."),
    description=Text(
        "The run was alive, said nothing of an end, and has exported nothing for {value:duration}: killed, crashed, or "
        "its telemetry is cut off. Idle, perhaps: {gpus}. An emitter that never says 'ended' also ends like this."
    ),
    panel=(ids.RUN, ids.RunPanel.STATE),
    no_data="silent; a run that was never seen is nobody's",
)

GROUP = RuleGroup(name="progress", rules=(TRAINING_HUNG, TRAINING_VANISHED))
