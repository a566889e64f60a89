"""What can be chosen at the top of a board."""

from __future__ import annotations

from dataclasses import replace

from dashboards import promql, signals
from dashboards.promql import TIME, Expr
from dashboards.scope import Scope, SeriesSettings
from dashboards.signals import by_run


def _choosable(label: str) -> promql.Matcher:
    """Values that a panel can quote: a backtick would end the quotation."""
    return promql.Matcher(label, "!~", promql.string(".*`.*"))


def run_choices(scope: Scope) -> Expr:
    """Every run seen in the dashboard's time range: live ones first, the latest start first.

    Unit: none; the value only orders. Rounded to ten minutes, so that live runs do not change places.
    """
    label = scope.series.run_label
    every = replace(scope, run_matcher=promql.not_equal(label, ""))
    extra = (_choosable(label),) if scope.series.identity == "label" else ()
    seen = (by_run("count", every.select_any(*signals.PRESENCE, matchers=extra), scope) * 0 + TIME).range("$__range")
    last, first = promql.call("max_over_time", seen), promql.call("min_over_time", seen)
    return promql.call("sort_desc", promql.call("floor", last / 600) + first / 10_000_000_000)


def label_choices(label: str, scope: Scope) -> Expr:
    """Every value of one of the site's further labels in the dashboard's time range, whatever run has it.

    Shape: one series per value, with nothing but the label in its plain form.
    Unit:  none; the value only counts series.
    """
    series = SeriesSettings(namespace=scope.series.namespace)
    every = replace(scope, series=series, run_matcher=_choosable(label), matchers=(promql.not_equal(label, ""),))
    seen = promql.call("last_over_time", every.select_any(*signals.PRESENCE).range("$__range"))
    plain = promql.plain_label(label)
    return promql.aggregate("count", seen if plain == label else promql.copy_label(seen, label, plain), (plain,))
