"""Sampling strategies of spans by name. Standard library only: a rank that does not export knows the names as well."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler

    from .ranks import Place
    from .settings import Settings

RANK_AWARE = "rank_aware"
"""All spans of a rank or none, by the rule of the rank strategy `sampled`."""

SamplerFactory = Callable[["Place", "Settings"], "Sampler"]

_factories: dict[str, SamplerFactory] = {}


def register_sampling_strategy(name: str, factory: SamplerFactory) -> None:
    """Make a name known that a process may ask for as its sampling strategy; the factory makes its sampler.

    Raises: ValueError if the name is empty or taken.
    """
    taken = (RANK_AWARE, *_factories)
    if not name.strip() or name in taken:
        raise ValueError(
            f"emitter.register_sampling_strategy: a name must be new and not empty (got {name!r}). "
            f"Taken are {', '.join(taken)}."
        )
    _factories[name] = factory


def sampler_factory(name: str) -> SamplerFactory | None:
    """What was registered under the name; None for a strategy of ours, or where none is named.

    Raises: ValueError if nobody knows the name.
    """
    known = (RANK_AWARE, *_factories)
    if name and name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else "Register yours before."
        raise ValueError(f"emitter: the sampling strategy must be one of {', '.join(known)} (got {name!r}). {hint}")
    return _factories.get(name)
