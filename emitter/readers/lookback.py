"""The last unknown lines, since one that is as wide as a terminal may hold the beginning of what follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

LOOK_BACK = 4
"""Unknown lines that may turn out to be the beginning of a record, and lines in which its rest is looked for."""


class LookBack:
    """Long unknown lines, and the second halves of words that one of them may have begun."""

    def __init__(self) -> None:
        self.lines: deque[bytes] = deque(maxlen=LOOK_BACK)
        self._halves: tuple[str, ...] = ()
        self.until = 0
        """Number of the line up to which they may come."""

    def __bool__(self) -> bool:
        return bool(self.lines)

    def __iter__(self) -> Iterator[bytes]:
        """The last one first."""
        return reversed(self.lines)

    def await_halves(self, halves: tuple[str, ...], number: int) -> None:
        """Look for these in the lines after this one."""
        self._halves, self.until = halves, number + LOOK_BACK

    def is_awaited(self, text: str, number: int) -> bool:
        """Whether a line has one of them."""
        return number <= self.until and any(half in text for half in self._halves)
