"""What a run's time is spent on, and in how many attempts."""

from __future__ import annotations

from dashboards import promql
from dashboards.promql import Expr, Matcher
from dashboards.queries.values import latest
from dashboards.scope import Scope
from dashboards.signals import by_run
from emitter import catalog

PRODUCTIVE = promql.equal("bucket", "productive")
LOST = promql.not_equal("bucket", "productive")


def attempt(scope: Scope) -> Expr:
    """Number of the attempt, counted from 0."""
    return latest(catalog.RUN_ATTEMPT, scope)


def _spent(scope: Scope, window: str, *matchers: Matcher) -> Expr:
    """Time by purpose, of all processes together: attempts follow each other, and ranks agree."""
    return scope.by_spelling(
        catalog.RUN_TIME,
        lambda s: promql.call("increase", s.range(window)),
        *matchers,
        combine="sum",
        by=catalog.RUN_TIME.attributes,
    )


def time_share(scope: Scope, window: str, purpose: Matcher) -> Expr:
    """Share of a run's time that some purposes took within a window; time without any process is no one's.

    Shape: one series per run and bucket; those of all buckets add up to 1.
    Unit:  share.
    """
    whole = by_run("sum", _spent(scope, window), scope)
    return _spent(scope, window, purpose).over(whole > 0, on=(scope.run,))
