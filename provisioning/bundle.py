"""Everything that is delivered: the dashboards and rules of a site."""

from __future__ import annotations

from dataclasses import dataclass

from alerts.registry import RULE_GROUPS
from alerts.rule import RuleGroup
from dashboards.dashboard import Dashboard, View
from dashboards.registry import DASHBOARDS
from provisioning.site import ALERT_FOLDER, Site


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a target renders and a check looks at."""

    site: Site
    dashboards: tuple[Dashboard, ...]
    rule_groups: tuple[RuleGroup, ...]


def collect(site: Site) -> Bundle:
    """The bundle of a site, from both registries."""
    view = View(
        scope=site.panel_scope,
        settings=site.dashboards,
        alert_engine=site.alerting.engine,
        alert_folder=ALERT_FOLDER,
        datasource_name=site.grafana.datasource.name,
    )
    return Bundle(site=site, dashboards=tuple(build(view) for build in DASHBOARDS), rule_groups=RULE_GROUPS)
