"""Durations from a clock that shows whole seconds since training began, as progress bars do."""

from __future__ import annotations

from .readings import Number

COARSE_S = 10
"""What a clock of whole seconds needs to tell a duration to a tenth; until then lines are taken together."""


class ElapsedClock:
    """The clock of one process."""

    def __init__(self) -> None:
        self._mark: tuple[int, Number] | None = None

    def interval(self, iteration: int, elapsed_ms: Number) -> tuple[float, float] | None:
        """Milliseconds of an iteration and seconds of them all, since this last had an answer.

        None while that is not long ago, and for the first line: whoever resumes starts the clock again.
        """
        if self._mark is None or iteration <= self._mark[0] or elapsed_ms < self._mark[1]:
            self._mark = (iteration, elapsed_ms)
            return None
        passed_ms = elapsed_ms - self._mark[1]
        if passed_ms < COARSE_S * 1000:
            return None
        iterations = iteration - self._mark[0]
        self._mark = (iteration, elapsed_ms)
        return passed_ms / iterations, passed_ms / 1000
