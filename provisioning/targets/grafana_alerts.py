"""Grafana-managed alert rules as provisioning files, valid from Grafana 9.4 on.

Self-contained: old versions have no recording rules, and the rules of a group are not evaluated in order.
"""

from __future__ import annotations

import re
from typing import Any

from alerts.rule import AlertRule
from dashboards.scope import Scope
from provisioning.bundle import Bundle
from provisioning.site import ALERT_FOLDER, Site
from provisioning.targets import texts
from provisioning.targets.yaml_text import dump

# Grafana fills the texts in even where a rule has no data: `with` keeps that from being an error in its log.
_DIALECT = texts.Dialect(value="{{ with $values.A }}{{ .Value | FORM }}{{ end }}", dollar="$$")
_EXPRESSION = {"type": "__expr__", "uid": "__expr__"}


def render(bundle: Bundle) -> dict[str, str]:
    """One file per group of alerts, under `grafana/provisioning/alerting`.

    Where the site's engine is Prometheus the rules are paused, so that nobody is paged twice.
    """
    site = bundle.site
    scope = site.in_place_scope
    return {
        f"grafana/provisioning/alerting/{group.name}.yaml": dump(
            {
                "apiVersion": 1,
                "groups": [
                    {
                        "orgId": 1,
                        "name": f"megatron-watch-{group.name}",
                        "folder": ALERT_FOLDER,
                        "interval": site.alerting.interval,
                        "rules": [alert(rule, site, scope) for rule in group.rules],
                    }
                ],
            }
        )
        for group in bundle.rule_groups
    }


def uid(rule: AlertRule) -> str:
    """UID of a rule, from its name: `mw-training-hung`."""
    return "mw" + re.sub(r"([A-Z])", r"-\1", rule.name).lower()


def alert(rule: AlertRule, site: Site, scope: Scope) -> dict[str, Any]:
    """One rule of a provisioning file.

    Grafana expands `$` in titles and labels, not in annotations and queries. The condition accepts every number that
    the query returns, NaN and Inf too: a threshold treats those differently from version to version.
    """
    dashboard, panel = rule.panel
    source = site.grafana.datasource.uid
    query = {
        "refId": "A",
        "expr": str(rule.expr(scope)),
        "instant": True,
        "range": False,
        "editorMode": "code",
        "datasource": {"type": "prometheus", "uid": source},
        "intervalMs": 1000,
        "maxDataPoints": 43200,
    }
    condition = {
        "refId": "C",
        "type": "math",
        "expression": "is_number($A) || is_nan($A) || is_inf($A)",
        "datasource": _EXPRESSION,
        "intervalMs": 1000,
        "maxDataPoints": 43200,
    }
    return {
        "uid": uid(rule),
        "title": rule.name,
        "condition": "C",
        "for": rule.hold,
        "noDataState": "OK",
        "execErrState": "Error",
        "isPaused": site.alerting.engine == "prometheus",
        "labels": texts.labels(rule, site, _DIALECT),
        "annotations": {
            **texts.notes(rule, site, _DIALECT),
            "__dashboardUid__": dashboard,
            "__panelId__": str(int(panel)),
        },
        "data": [
            {
                "refId": "A",
                "datasourceUid": source,
                "relativeTimeRange": {"from": 600, "to": 0},
                "model": query,
            },
            {
                "refId": "C",
                "datasourceUid": "__expr__",
                "relativeTimeRange": {"from": 0, "to": 0},
                "model": condition,
            },
        ],
    }
