"""Prometheus rule files: the recording rules of the signals, and the alerts that stand on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alerts.rule import AlertRule
from dashboards import signals
from dashboards.scope import Scope
from provisioning.bundle import Bundle
from provisioning.site import Site
from provisioning.targets import texts
from provisioning.targets.yaml_text import dump

_DIALECT = texts.Dialect(value="{{ $value | FORM }}")


def render(bundle: Bundle) -> dict[str, str]:
    """One file of recording rules and one per group of alerts, under `prometheus/rules`.

    Classic rule syntax only: no key that Prometheus 2.42, Mimir, Thanos or vmalert refuses.
    """
    site = bundle.site
    scope = site.recorded_scope
    records = [{"record": signal.name, "expr": str(signal.rule(scope))} for signal in signals.SIGNALS]
    groups: dict[str, Sequence[Mapping[str, object]]] = {"signals": records}
    for group in bundle.rule_groups:
        groups[group.name] = [alert(rule, site, scope) for rule in group.rules]
    return {f"prometheus/rules/{name}.yaml": _file(name, rules, site) for name, rules in groups.items()}


def alert(rule: AlertRule, site: Site, scope: Scope) -> dict[str, object]:
    """One alerting rule in Prometheus' format."""
    return {
        "alert": rule.name,
        "expr": str(rule.expr(scope)),
        "for": rule.hold,
        "labels": texts.labels(rule, site, _DIALECT),
        "annotations": texts.notes(rule, site, _DIALECT),
    }


def _file(name: str, rules: Sequence[Mapping[str, object]], site: Site) -> str:
    group = {"name": f"megatron-watch-{name}", "interval": site.alerting.interval, "rules": list(rules)}
    return dump({"groups": [group]})
