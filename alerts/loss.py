"""The loss is not a number, stands still, or is that of a skipped interval; steps are skipped."""

from alerts.rule import AlertRule, RuleGroup, Severity, Text
from dashboards import ids
from dashboards.queries import learning, progress

LOSS_NONFINITE = AlertRule(
    name="LossNonFinite",
    expr=lambda scope: progress.with_gpus(learning.loss_nonfinite(scope), scope),
    severity=Severity.PAGE,
    summary=Text("Run {run}: loss or gradient norm is NaN or Inf."),
    description=Text(
        "Non-finite values so far: {value}, the last one within the run's latest log intervals. If they go on, every "
        "step since the first is lost, on {gpus}."
    ),
    panel=(ids.RUN, ids.RunPanel.LOSS),
    no_data="silent; LossFrozen covers an emitter whose SDK drops NaN uncounted",
)

LOSS_FROZEN = AlertRule(
    name="LossFrozen",
    expr=lambda scope: progress.with_gpus(learning.loss_frozen(scope), scope),
    severity=Severity.PAGE,
    summary=Text("Run {run}: loss unchanged for {value} log intervals while steps go on."),
    description=Text(
        "Neither the loss nor the gradient norm has changed for {value} log intervals. OpenTelemetry's SDK drops NaN "
        "and exports the last finite value again: the run has most likely diverged, and every step since is lost, on "
        "{gpus}."
    ),
    panel=(ids.RUN, ids.RunPanel.LOSS),
    no_data="silent; without log intervals TrainingHung speaks",
)

LOSS_ZERO = AlertRule(
    name="LossZero",
    expr=lambda scope: progress.with_gpus(learning.loss_zero(scope), scope),
    severity=Severity.PAGE,
    summary=Text("Run {run}: loss is exactly 0."),
    description=Text(
        "Megatron-LM exports a loss of 0 when every iteration of a log interval was skipped: the whole interval's work "
        "is lost, on {gpus}, and the model did not learn."
    ),
    panel=(ids.RUN, ids.RunPanel.LOSS),
    no_data="silent; IterationsSkipped counts the skips themselves",
)

ITERATIONS_SKIPPED = AlertRule(
    name="IterationsSkipped",
    expr=learning.iterations_skipped,
    severity=Severity.TICKET,
    summary=Text("Run {run} skips iterations."),
    description=Text(
        "{value} iterations skipped by this process so far, the last within its latest log intervals. Each skipped "
        "iteration costs its time and teaches nothing."
    ),
    panel=(ids.RUN, ids.RunPanel.SKIPPED),
    no_data="silent; the counter appears with its first event at the latest",
)

GROUP = RuleGroup(name="loss", rules=(LOSS_NONFINITE, LOSS_FROZEN, LOSS_ZERO, ITERATIONS_SKIPPED))
