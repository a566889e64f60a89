"""What GPU memory a run takes, and what it failed to get."""

from __future__ import annotations

from dashboards.promql import Expr
from dashboards.queries.values import grown, latest
from dashboards.scope import Scope
from emitter import catalog


def allocated(scope: Scope) -> Expr:
    """Peak memory allocated on the exporting rank.

    Unit: GiB.
    """
    return latest(catalog.MEMORY_ALLOCATED, scope)


def active_share(scope: Scope) -> Expr:
    """Peak active memory as a share of capacity."""
    return latest(catalog.MEMORY_MAX_ACTIVE_SHARE, scope)


def reserved_share(scope: Scope) -> Expr:
    """Peak reserved memory as a share of capacity."""
    return latest(catalog.MEMORY_MAX_RESERVED_SHARE, scope)


def retries(scope: Scope) -> Expr:
    """Allocations within the window that were tried again."""
    return grown(catalog.MEMORY_ALLOC_RETRIES, scope)


def ooms(scope: Scope) -> Expr:
    """Out-of-memory errors within the window."""
    return grown(catalog.MEMORY_OOMS, scope)
