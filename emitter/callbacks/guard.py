"""Keeps what fails in a callback out of the training that calls it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..repeats import Once

_once = Once(__name__)


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """The same hook, of which no exception comes out; the first one of each hook is logged."""

    @wraps(hook)
    def call(*arguments: Any, **options: Any) -> None:
        try:
            hook(*arguments, **options)
        except Exception as error:
            where = f"{hook.__module__}.{hook.__qualname__}"
            _once.warn(where, "%s: must not fail (got %r). Training goes on.", where, error)

    return call
