"""The layouts that a log may have: those of all families, until one of its lines tells which family it is of."""

from __future__ import annotations

from collections.abc import Iterable

from . import common
from .forms import Forms
from .joining import Found
from .readings import Layout
from .table import Family, TrainingLine
from .words import Words

ENDS = 32
"""Last keys that are remembered."""


class Layouts:
    """What is looked for in the lines of one log."""

    words: Words
    forms: Forms
    endless: TrainingLine | None
    """The layout of training lines, if it is the only one and nothing tells where such a line ends."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)
        self.family: Family | None = self._families[0] if len(self._families) == 1 else None
        """Whose log it is."""
        self._ends: frozenset[str] = frozenset()
        """Last keys of training lines."""
        self._choose()

    def _choose(self) -> None:
        families = (self.family,) if self.family and self.is_sure else self._families
        self._training: tuple[tuple[TrainingLine, Family], ...] = tuple(
            (layout, family) for family in families for layout in family.training
        )
        layout = self._training[0][0]
        self.endless = layout if len(self._training) == 1 and layout.endless else None
        others = [layout for family in families for layout in family.others]
        self._others: tuple[Layout, ...] = tuple({id(layout): layout for layout in (*others, *common.LAYOUTS)}.values())
        layouts: list[Layout] = [*(layout for layout, _ in self._training), *self._others]
        self.words = Words(word for layout in layouts for word in layout.words)
        self.forms = Forms()

    @property
    def is_sure(self) -> bool:
        """Whether the family is known, and the log has no other one beside it."""
        return self.family is not None and not self.family.companion

    def recognize(self, layout: TrainingLine) -> bool | None:
        """Take the family of a training line for that of the log. True if it was another one; None if it cannot be."""
        family = next((family for own, family in self._training if own is layout), None)
        if family is None:  # a companion's line, looked at before the log was recognized
            return None
        if family is self.family:
            return False
        before, self.family = self.family, family
        self._choose()
        return before is not None

    def learn_end(self, key: str) -> None:
        """Remember the last key of a training line."""
        if key not in self._ends:
            self._ends = frozenset([*sorted(self._ends)[:ENDS], key])

    def scan(self, text: str) -> Found | None:
        """The first layout that knows a text."""
        for layout, family in self._training:
            if self.family is not family and not family.signed(text):
                continue
            for word in layout.words:
                if word in text:
                    if scan := layout.scan(text, self._ends):
                        return layout, scan
                    break
        for other in self._others:
            for word in other.words:
                if word in text:
                    if scan := other.scan(text, self._ends):
                        return other, scan
                    break
        return None

    def may_begin(self, end: str) -> bool:
        """Whether the end of a line has the word of a training line."""
        return any(word in end for layout, _ in self._training for word in layout.words)
