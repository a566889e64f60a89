"""Which rank this process is, and which ranks export. Standard library only."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .settings import Settings

SINGLE_RANK = "single_rank"
FIRST_RANK_PER_NODE = "first_rank_per_node"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a process stands in its run.

    Raises: ValueError if there can be no such place.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Number on its node; 0 where the launcher does not say."""
    local_world_size: int | None = None
    """Ranks on its node; None where the launcher does not say."""

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"emitter.ranks: a rank must be 0 to world size - 1 (got rank {self.rank} of {self.world_size}). "
                "Check the launcher's variables."
            )
        if self.local_rank < 0 or (self.local_world_size is not None and self.local_rank >= self.local_world_size):
            raise ValueError(
                "emitter.ranks: a local rank must be 0 to local world size - 1 "
                f"(got local rank {self.local_rank} of {self.local_world_size}). Check the launcher's variables."
            )


class Launcher(NamedTuple):
    """The variables of one launcher; of several names the first that is set counts."""

    marks: tuple[str, ...]
    """All of them are set where this launcher started the process."""
    rank: str
    world_size: tuple[str, ...]
    local_rank: str = ""
    local_world_size: tuple[str, ...] = ()

    @property
    def variables(self) -> tuple[str, ...]:
        """All that are read."""
        return (self.rank, *self.world_size, self.local_rank, *self.local_world_size)


# The innermost launcher first: under mpirun in a Slurm job, Slurm's variables count nodes and not ranks.
LAUNCHERS = (
    Launcher(("RANK",), "RANK", ("WORLD_SIZE",), "LOCAL_RANK", ("LOCAL_WORLD_SIZE",)),  # torchrun
    Launcher(
        ("OMPI_COMM_WORLD_RANK",),  # Open MPI
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_SIZE",),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(("PMI_RANK", "MPI_LOCALRANKID"), "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", ("MPI_LOCALNRANKS",)),
    Launcher(
        ("SLURM_PROCID",),
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),  # the step's own number is right where a job has several
        "SLURM_LOCALID",
        ("SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"),
    ),
    Launcher(("PMI_RANK",), "PMI_RANK", ("PMI_SIZE",)),  # srun --mpi=pmi2 sets it, too, but Slurm's say more
)

_SAME_ON_EACH_NODE = re.compile(r"(\d+)(?:\(x\d+\))?")
"""Slurm's list of tasks per node, where every node has as many: 8 or 8(x4), but not 8(x3),4."""


def place(environ: Mapping[str, str]) -> Place:
    """Where the launcher put this process: rank 0 of 1 without one.

    One launcher's variables are read, never a mixture. A shell of `salloc` and the script of `sbatch` are no
    ranks: what runs there without `srun` is alone, whatever number of tasks the job asked for.

    Raises: ValueError that names a variable that is missing or no number.
    """
    launcher = launcher_of(environ)
    if launcher is None:
        return Place()
    return Place(
        rank=_number(launcher.rank, environ),
        world_size=_number(_first(launcher.world_size, environ), environ),
        local_rank=_number(launcher.local_rank, environ) if environ.get(launcher.local_rank) else 0,
        local_world_size=_on_each_node(launcher, environ),
    )


def launcher_of(environ: Mapping[str, str]) -> Launcher | None:
    """Who started this process as one of several ranks; None if nobody did."""
    for launcher in LAUNCHERS:
        if all(environ.get(name) for name in launcher.marks) and not _is_batch_script(launcher, environ):
            return launcher
    return None


def _is_batch_script(launcher: Launcher, environ: Mapping[str, str]) -> bool:
    """Slurm numbers the script of a job 0 of all its tasks; a task that srun starts has a step."""
    in_step = any(environ.get(name) for name in ("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS"))
    return launcher.rank == "SLURM_PROCID" and environ.get("ENVIRONMENT") == "BATCH" and not in_step


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> str:
    return next((name for name in names if environ.get(name)), names[-1])


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ.get(name, "")
    if not text:
        raise ValueError(f"{name}: must be set where the launcher's other variables are (got nothing). Set it.")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}: must be a whole number (got {text!r}). Check who sets it.") from None


def _on_each_node(launcher: Launcher, environ: Mapping[str, str]) -> int | None:
    for name in launcher.local_world_size:
        if not (text := environ.get(name)):
            continue
        if "TASKS_PER_NODE" not in name:
            return _number(name, environ)
        if match := _SAME_ON_EACH_NODE.fullmatch(text):
            return int(match[1])
    return None


RankStrategy = Callable[[Place, "Settings"], bool]
"""Says whether the rank at a place exports."""


def _single_rank(place: Place, settings: Settings) -> bool:
    wanted = settings.export_rank
    if not -place.world_size <= wanted < place.world_size:
        raise ValueError(
            f"emitter.ranks: export_rank must be {-place.world_size} to {place.world_size - 1} in a run of "
            f"{place.world_size} ranks (got {wanted}). Use -1 for the last rank."
        )
    return place.rank == wanted % place.world_size


def _all_ranks(_place: Place, _settings: Settings) -> bool:
    return True


def _sampled(place: Place, settings: Settings) -> bool:
    return in_sample(place.rank, settings.export_sample_rate)


def _first_rank_per_node(place: Place, _settings: Settings) -> bool:
    return place.local_rank == 0


_strategies: dict[str, RankStrategy] = {
    SINGLE_RANK: _single_rank,
    "all_ranks": _all_ranks,
    "sampled": _sampled,
    FIRST_RANK_PER_NODE: _first_rank_per_node,
}


def in_sample(rank: int, rate: float) -> bool:
    """Whether a rank is one of the share `rate`: evenly spaced from rank 0 on, the same on every process.

    Of n ranks, rate times n are, rounded up; computed with the decimal number as it is written, since 0.1 has no
    exact binary form.
    """
    share = Fraction(str(rate))
    return math.ceil((rank + 1) * share) > math.ceil(rank * share)


def register_rank_strategy(name: str, strategy: RankStrategy) -> None:
    """Add a strategy of one's own, before set-up, on every rank.

    Raises: ValueError if the name is empty or taken.
    """
    if not name.strip():
        raise ValueError(f"emitter.ranks: a rank strategy has a name (got {name!r}). Name it.")
    if name in _strategies:
        raise ValueError(f"emitter.ranks: a rank strategy is registered once (got {name!r} again). Rename it.")
    _strategies[name] = strategy


def rank_strategies() -> tuple[str, ...]:
    """Names of the strategies there are."""
    return tuple(_strategies)


def exports(place: Place, settings: Settings) -> bool:
    """Whether the rank at a place exports under the strategy of the settings.

    Raises: ValueError if there is no such strategy, or no such rank to export.
    """
    name = settings.rank_strategy
    strategy = _strategies.get(name)
    if strategy is None:
        near = difflib.get_close_matches(name, _strategies, 1)
        hint = f"Did you mean {near[0]!r}?" if near else "Use one of them, or register it before set-up."
        raise ValueError(f"emitter.ranks: rank_strategy must be one of {', '.join(_strategies)} (got {name!r}). {hint}")
    return bool(strategy(place, settings))


def several_per_node(settings: Settings) -> bool:
    """Whether several ranks of one node may export, so that a scrape port must be each rank's own."""
    return settings.rank_strategy not in (SINGLE_RANK, FIRST_RANK_PER_NODE)
