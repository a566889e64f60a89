"""What several ranks say is told once: whoever comes first with a statement is heard, the others repeat it.

Every rank says the same in the same order. So a statement is news if it is further than what was told of its sort: by
its iteration if it has one, else by how often its source has said it. A rank that is late says nothing new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from .. import catalog
from .readings import Number, Reading

SOURCES = 4096
"""Sources, and SORTS of statements, that are remembered: memory is constant in the length of a log."""

SORTS = 64

_Sort = tuple[Any, ...]


class Echoes:
    """The statements of one process, training lines aside."""

    def __init__(self) -> None:
        self._told: dict[_Sort, tuple[int, Mapping[Any, Number]]] = {}
        """How far, and the values there."""
        self._said: OrderedDict[str, dict[_Sort, int]] = OrderedDict()

    def is_news(self, reading: Reading, source: str, *, anew: bool) -> bool:
        """Whether a statement is the first of its kind. `anew`: also if it was told, unless its source lags."""
        timers = (name for times in reading.series.values() for name in times)
        sort = (reading.kind, reading.phase, *reading.values, *reading.cumulative, *timers)
        said = self._said.setdefault(source, {})
        self._said.move_to_end(source)
        if len(self._said) > SOURCES:
            self._said.popitem(last=False)
        before = said.get(sort, -1)
        iteration = reading.values.get(catalog.ITERATION, reading.iteration)
        place = before + 1 if iteration is None else int(iteration)
        told, values = self._told.get(sort, (-1, {}))
        again = before >= place and not (place == told and values and values == reading.values)
        if len(said) < SORTS or sort in said:
            said[sort] = place
        if place <= told and not again and not anew:
            return False
        if len(self._told) < SORTS or sort in self._told:
            self._told[sort] = (place, reading.values)
        return True
