"""Ranks: where a launcher put a process, and which ranks export."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitter import ranks
from emitter.ranks import (
    Place,
    exports,
    in_sample,
    place,
    rank_strategies,
    register_rank_strategy,
    several_per_node,
)
from emitter.settings import Settings

BUILT_IN = ("single_rank", "all_ranks", "sampled", "first_rank_per_node")

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "6",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
HYDRA = {"PMI_RANK": "7", "PMI_SIZE": "16", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
SLURM = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS_PER_NODE": "8",
}
BATCH = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "16",
    "SLURM_NTASKS_PER_NODE": "8",
    "ENVIRONMENT": "BATCH",
}


@pytest.fixture(autouse=True)
def _own_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(ranks, "_strategies", dict(ranks._strategies))


def at(rank: int, world_size: int = 16, per_node: int = 4) -> Place:
    """A rank of a job with as many ranks on each node."""
    return Place(rank=rank, world_size=world_size, local_rank=rank % per_node, local_world_size=per_node)


def exporting(world_size: int = 16, **options: object) -> list[int]:
    """Ranks of a job that export."""
    settings = Settings(**options)  # type: ignore[arg-type]
    return [rank for rank in range(world_size) if exports(at(rank, world_size), settings)]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, None)),
        (TORCHRUN, (5, 16, 1, 4)),
        (SLURM, (9, 16, 1, 8)),
        (OPEN_MPI, (6, 16, 2, 4)),
        (HYDRA, (7, 16, 3, 4)),
        ({"PMI_RANK": "7", "PMI_SIZE": "16"}, (7, 16, 0, None)),
        ({"RANK": "5", "WORLD_SIZE": "16"}, (5, 16, 0, None)),
        ({"RANK": "", "WORLD_SIZE": "16", "LOCAL_RANK": "3"}, (0, 1, 0, None)),
    ],
)
def test_each_launcher_is_understood(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    """Rank, world size, local rank and local world size, from whoever started the process."""
    found = place(environ)
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == expected


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({**TORCHRUN, **SLURM, **OPEN_MPI, **HYDRA}, 5),
        ({**SLURM, **OPEN_MPI}, 6),
        ({**SLURM, **HYDRA}, 7),
        ({**SLURM, "PMI_RANK": "3", "PMI_SIZE": "4"}, 9),
    ],
)
def test_the_innermost_launcher_counts(environ: dict[str, str], rank: int) -> None:
    """Inside a Slurm job torchrun and mpirun number the ranks, and Slurm what it started: one a node."""
    assert place(environ).rank == rank


def test_launchers_are_never_mixed() -> None:
    """What one launcher does not say is not taken from another, whose numbers mean something else."""
    assert place({"RANK": "5", "WORLD_SIZE": "16", **SLURM}) == Place(rank=5, world_size=16)


@pytest.mark.parametrize(
    ("tasks", "local_world_size"), [("8", 8), ("8(x4)", 8), ("8(x3),4", None), ("4,8(x3)", None), ("", None)]
)
def test_slurms_tasks_per_node_where_all_have_as_many(tasks: str, local_world_size: int | None) -> None:
    """A list of different numbers says nothing about this node."""
    environ = {**SLURM, "SLURM_NTASKS_PER_NODE": "", "SLURM_STEP_TASKS_PER_NODE": tasks}
    assert place(environ).local_world_size == local_world_size


def test_a_step_knows_better_than_its_job() -> None:
    """`srun -n 2` inside a job of 16 tasks is a run of 2 ranks."""
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_ID": "0"}
    assert place({**BATCH, **step, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}) == Place(
        rank=1, world_size=2, local_rank=1, local_world_size=2
    )


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "16"},
        BATCH,
        {**BATCH, "ENVIRONMENT": "", "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"},
    ],
    ids=["salloc", "sbatch", "interactive step"],
)
def test_a_process_that_srun_did_not_start_is_alone(environ: dict[str, str]) -> None:
    """What runs in the shell of salloc or the script of sbatch is rank 0 of 1: else nobody would be the last rank."""
    found = place(environ)
    assert (found.rank, found.world_size) == (0, 1)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({**TORCHRUN, "RANK": "five"}, r"^RANK: must be a whole number \(got 'five'\)\. "),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4.0"}, r"^LOCAL_WORLD_SIZE: must be a whole number \(got '4\.0'\)\. "),
        ({**SLURM, "SLURM_NTASKS": "many"}, r"^SLURM_NTASKS: must be a whole number \(got 'many'\)\. "),
        ({"RANK": "5"}, r"^WORLD_SIZE: must be set where the launcher's other variables are \(got nothing\)\. "),
        ({**TORCHRUN, "RANK": "16"}, r"a rank must be 0 to world size - 1 \(got rank 16 of 16\)"),
        ({**TORCHRUN, "RANK": "-1"}, r"a rank must be 0 to world size - 1 \(got rank -1 of 16\)"),
        ({**TORCHRUN, "LOCAL_RANK": "4"}, r"a local rank must be .* \(got local rank 4 of 4\)"),
        ({**TORCHRUN, "LOCAL_RANK": "-1"}, r"a local rank must be .* \(got local rank -1 of 4\)"),
    ],
)
def test_an_impossible_place_is_an_error(environ: dict[str, str], message: str) -> None:
    """The error names the variable or the numbers."""
    with pytest.raises(ValueError, match=message):
        place(environ)


def test_by_default_the_last_rank_exports() -> None:
    """As in Megatron-LM, whose losses are on the last rank."""
    assert exporting() == [15]
    assert exporting(1) == [0]


@pytest.mark.parametrize(("wanted", "rank"), [(0, 0), (3, 3), (15, 15), (-1, 15), (-16, 0)])
def test_a_single_rank_is_counted_from_either_end(wanted: int, rank: int) -> None:
    """Negative numbers count from the last rank."""
    assert exporting(export_rank=wanted) == [rank]


@pytest.mark.parametrize("wanted", [16, -17])
def test_a_single_rank_that_is_not_there_is_an_error_on_every_rank(wanted: int) -> None:
    """Otherwise nobody would export, and nobody would say so."""
    for rank in range(16):
        with pytest.raises(ValueError, match=rf"export_rank must be -16 to 15 .* \(got {wanted}\)\. Use -1"):
            exports(at(rank), Settings(export_rank=wanted))


def test_all_ranks_export_or_the_first_of_each_node() -> None:
    """Every rank, or those with local rank 0."""
    assert exporting(rank_strategy="all_ranks") == list(range(16))
    assert exporting(rank_strategy="first_rank_per_node") == [0, 4, 8, 12]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0, []),
        (0.25, [0, 4, 8, 12]),
        (0.1, [0, 10]),
        (0.3, [0, 3, 6, 10, 13]),
        (1e-9, [0]),
        (1.0, list(range(16))),
    ],
)
def test_a_sample_is_evenly_spaced_from_rank_0(rate: float, expected: list[int]) -> None:
    """The same ranks at every start."""
    assert exporting(rank_strategy="sampled", export_sample_rate=rate) == expected


@given(world_size=st.integers(1, 400), percent=st.integers(0, 100))
def test_a_sample_has_its_share_of_ranks(world_size: int, percent: int) -> None:
    """As many as the decimal rate says, rounded up, and no two gaps differ by more than one."""
    rate = percent / 100
    sample = [rank for rank in range(world_size) if in_sample(rank, rate)]
    assert len(sample) == math.ceil(world_size * Fraction(percent, 100))
    gaps = {after - before for before, after in pairwise(sample)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_strategy_of_ones_own_is_registered() -> None:
    """It is given the place and the settings, and is found by its name."""
    seen = []

    def every_fifth(where: Place, settings: Settings) -> bool:
        seen.append((where, settings))
        return where.rank % 5 == 0

    register_rank_strategy("every_fifth", every_fifth)
    assert exporting(rank_strategy="every_fifth") == [0, 5, 10, 15]
    assert seen[3] == (at(3), Settings(rank_strategy="every_fifth"))
    assert rank_strategies() == (*BUILT_IN, "every_fifth")


@pytest.mark.parametrize("name", [*BUILT_IN, "", " "])
def test_a_name_that_is_taken_or_empty_is_refused(name: str) -> None:
    """No built-in strategy is replaced unseen."""
    with pytest.raises(ValueError, match=r"emitter\.ranks: a rank strategy "):
        register_rank_strategy(name, lambda where, settings: True)
    assert rank_strategies() == BUILT_IN


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("singel_rank", "Did you mean 'single_rank'?"),
        ("nobody", "Use one of them, or register it before set-up."),
    ],
)
def test_an_unknown_strategy_lists_what_there_is(name: str, hint: str) -> None:
    """With the one that was meant, or that it may be registered."""
    with pytest.raises(ValueError, match="rank_strategy must be one of") as caught:
        exports(Place(), Settings(rank_strategy=name))
    assert str(caught.value) == (
        "emitter.ranks: rank_strategy must be one of single_rank, all_ranks, sampled, first_rank_per_node "
        f"(got {name!r}). {hint}"
    )


@pytest.mark.parametrize(
    ("name", "several"),
    [("single_rank", False), ("first_rank_per_node", False), ("all_ranks", True), ("sampled", True), ("mine", True)],
)
def test_who_shares_a_node_needs_a_port_of_its_own(name: str, several: bool) -> None:
    """A strategy of one's own may choose any ranks, so it is taken to choose several of a node."""
    assert several_per_node(Settings(rank_strategy=name)) is several
