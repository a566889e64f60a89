"""Every dashboard, in display order."""

from collections.abc import Callable

from dashboards import run
from dashboards.dashboard import Dashboard, View

DASHBOARDS: tuple[Callable[[View], Dashboard], ...] = (run.dashboard,)
