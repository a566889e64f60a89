"""Every group of alert rules, in the order of their files."""

from alerts import loss, progress, telemetry, throughput

RULE_GROUPS = (progress.GROUP, loss.GROUP, throughput.GROUP, telemetry.GROUP)
