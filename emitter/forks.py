"""What a forked child must let go of: locks whose holder stayed in the parent, ports. Standard library only."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that a fork concerns."""

    def after_fork(self) -> None:
        """Called in the child, where no other thread lives."""


_concerned: WeakSet[Forked] = WeakSet()


def tell_in_child(one: Forked) -> None:
    """Tell it in every child that is forked from now on, for as long as it lives."""
    _concerned.add(one)


def _tell() -> None:
    for one in list(_concerned):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
