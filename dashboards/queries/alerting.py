"""The alerts themselves, as series."""

from __future__ import annotations

from dashboards import promql
from dashboards.promql import Expr
from dashboards.scope import Scope


def firing_alerts(scope: Scope) -> Expr:
    """Firing alerts of the chosen runs, where Prometheus evaluates the rules.

    Shape: one series per alert, severity and run.
    """
    matchers = (promql.equal("alertstate", "firing"), promql.not_equal("run", ""), promql.variable("run", "run"))
    return promql.aggregate("max", promql.selector(matchers, "ALERTS"), ("severity", "alertname", "run"))


def watchdog(_scope: Scope) -> Expr:
    """Always true."""
    return promql.call("vector", 1)
