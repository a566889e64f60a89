"""What a dashboard is: rows of panels, the queries behind them, and the place of each on the grid.

What a panel looks like is drawn by `style`; this module knows no Grafana class and needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from dashboards.promql import Expr, seconds
from dashboards.scope import Scope
from emitter.catalog import Metric

COLUMNS = 24
"""Width of Grafana's grid."""

SHORTEST_WINDOW_S = 60

Engine = Literal["grafana", "prometheus"]

Role = Literal["value", "good", "bad", "marks", "limit"]
"""What the series of a query say: a value; one that is fine, or not; moments of trouble; a limit of an alert."""


@dataclass(frozen=True, kw_only=True)
class BoardSettings:
    """What a site decides about its dashboards."""

    min_window: str = "5m"
    """Shortest window of rates and averages: three times the slowest log interval that shall show without a gap."""

    def __post_init__(self) -> None:
        try:
            length_s = seconds(self.min_window)
        except ValueError as error:
            raise ValueError(f"min_window {error}") from None
        if length_s < SHORTEST_WINDOW_S:
            raise ValueError(f"min_window must be at least {SHORTEST_WINDOW_S}s (got {self.min_window!r})")


@dataclass(frozen=True, kw_only=True)
class View:
    """What a dashboard is built from: the site's series and its wishes."""

    scope: Scope
    settings: BoardSettings
    alert_engine: Engine
    alert_folder: str
    """Grafana folder of the alert rules, for boards that list them."""
    datasource_name: str
    """The data source that a board opens with."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """One panel query."""

    expr: Expr
    legend: str = ""
    """What a series is called: text with `{{label}}`; empty for a table."""
    instant: bool = False
    """The value now, instead of values over the time range."""
    table: bool = False
    """Labels become columns."""
    role: Role = "value"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Raises: ValueError if a text is missing or the panel does not fit the grid.
    """

    id: IntEnum
    title: str
    description: str
    """One sentence that says how to read it."""
    unit: str
    queries: tuple[Query, ...]
    needs: tuple[Metric, ...]
    """Catalogue entries without which the panel stays empty."""
    width: int
    height: int
    drawing: Any
    """The grafanalib object; its place on the grid is set by the target."""

    def __post_init__(self) -> None:
        for field in ("title", "description", "unit"):
            if not getattr(self, field).strip():
                raise ValueError(f"dashboards: panel {self.id!r} must have a {field} (got {getattr(self, field)!r}).")
        if not (0 < self.width <= COLUMNS and self.height > 0):
            raise ValueError(
                f"dashboards: panel {self.title!r} must be 1 to {COLUMNS} wide and at least 1 high "
                f"(got {self.width} by {self.height})."
            )


@dataclass(frozen=True, kw_only=True)
class Row:
    """Panels under one heading, placed from left to right; a full line begins the next."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False

    def __post_init__(self) -> None:
        if not self.panels:
            raise ValueError(f"dashboards: row {self.title!r} must have a panel.")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A choice at the top of a dashboard; `expr` is the query that lists its values."""

    name: str
    expr: Expr | None
    drawing: Any


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a panel or a row heading lies on the grid."""

    x: int
    y: int
    width: int
    height: int

    def overlaps(self, other: Place) -> bool:
        """Whether two places share a cell."""
        apart = self.x + self.width <= other.x or other.x + other.width <= self.x
        return not (apart or self.y + self.height <= other.y or other.y + other.height <= self.y)


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """One dashboard."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in screen order."""
        return tuple(panel for row in self.rows for panel in row.panels)

    def places(self) -> Iterator[tuple[Row | Panel, Place]]:
        """Every row heading, followed by its panels, with their places."""
        y = 0
        for row in self.rows:
            yield row, Place(x=0, y=y, width=COLUMNS, height=1)
            below = y + 1
            x, y, tallest = 0, below, 0
            for panel in row.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                yield panel, Place(x=x, y=y, width=panel.width, height=panel.height)
                x, tallest = x + panel.width, max(tallest, panel.height)
            y = below if row.collapsed else y + tallest
