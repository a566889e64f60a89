"""The path of the alerts themselves."""

from alerts.rule import AlertRule, RuleGroup, Severity, Text
from dashboards import ids
from dashboards.queries import alerting

WATCHDOG = AlertRule(
    name="Watchdog",
    expr=alerting.watchdog,
    severity=Severity.NOTE,
    summary=Text("The alerting path works."),
    description=Text("Fires always. Where it is missing, no other alert arrives either."),
    panel=(ids.RUN, ids.RunPanel.FIRING_ALERTS),
    no_data="cannot happen; its absence at the receiver is the alarm",
    per_run=False,
)

GROUP = RuleGroup(name="telemetry", rules=(WATCHDOG,))
