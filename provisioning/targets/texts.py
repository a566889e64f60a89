"""What the alerts of every target say: texts, links and labels, with a target's own templates in them."""

from __future__ import annotations

from dataclasses import dataclass

from alerts.rule import AlertRule, Text
from provisioning.site import Site

RUNBOOK = "alerts/runbook.md"
"""Where the runbook is in a checkout; a site that publishes it says where."""


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a target writes a label and the value of an alert into a text."""

    value: str
    """Template that shows the value through the function `FORM`."""
    dollar: str = "$"
    """How the target's files write a dollar sign in a label."""


_FORMS = {"duration": "humanizeDuration", "percentage": "humanizePercentage", "": "humanize"}


def fill(text: Text, run_label: str, dialect: Dialect) -> str:
    """The text with template expressions in place of its fields."""

    def field(name: str, form: str) -> str:
        if name == "run":
            return f"{{{{ $labels.{run_label} }}}}"
        if name == "gpus":
            return "{{ with $labels.gpus }}{{ . }} GPUs{{ else }}all of its GPUs{{ end }}"
        return dialect.value.replace("FORM", _FORMS[form])

    return text.fill(field)


def labels(rule: AlertRule, site: Site, dialect: Dialect) -> dict[str, str]:
    """Severity in the site's words, and the run under the name that routing relies on."""
    words = site.alerting.severities.model_dump()
    severity = words[rule.severity.value]
    if rule.severity_without_signals is not None:
        signals = f"{dialect.dollar}labels.signals"
        weaker = words[rule.severity_without_signals.value]
        severity = f'{{{{ if eq {signals} "yes" }}}}{severity}{{{{ else }}}}{weaker}{{{{ end }}}}'
    run = {"run": f"{{{{ {dialect.dollar}labels.{site.series.run} }}}}"} if rule.per_run else {}
    return {"severity": severity, **run}


def notes(rule: AlertRule, site: Site, dialect: Dialect) -> dict[str, str]:
    """Summary, description, and the links to the panel and to the runbook."""
    dashboard, panel = rule.panel
    run = f"&var-run={{{{ $labels.{site.series.run} | urlquery }}}}" if rule.per_run else ""
    return {
        "summary": fill(rule.summary, site.series.run, dialect),
        "description": fill(rule.description, site.series.run, dialect),
        "panel_url": f"{site.grafana.url}/d/{dashboard}?viewPanel={int(panel)}{run}",
        "runbook_url": f"{site.alerting.runbook_url or RUNBOOK}#{rule.name.lower()}",
    }
