"""The run is slower than it was."""

from alerts.rule import AlertRule, RuleGroup, Severity, Text
from dashboards import ids
from dashboards.queries import progress, speed

THROUGHPUT_COLLAPSE = AlertRule(
    name="ThroughputCollapse",
    expr=lambda scope: progress.with_gpus(speed.throughput_collapse(scope), scope),
    severity=Severity.PAGE,
    summary=Text("Run {run} trains at {value:percentage} of its usual speed."),
    description=Text(
        "The median of the latest log intervals is {value:percentage} of the run's own median over the hours before. "
        "The rest is wasted while it lasts, on {gpus}."
    ),
    panel=(ids.RUN, ids.RunPanel.TOKENS_PER_SECOND),
    no_data="silent; a process is compared with its own past only, TrainingHung covers one that stops",
)

GROUP = RuleGroup(name="throughput", rules=(THROUGHPUT_COLLAPSE,))
