"""Identity: one run id on all ranks, the attempt, and what a resource says."""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
from pathlib import Path

import pytest

from emitter import catalog, identity
from emitter.identity import resource, run_id, run_info
from emitter.ranks import Place
from emitter.settings import Settings, read_settings

HERE = Place(rank=0, world_size=8, local_rank=0, local_world_size=8)
RENDEZVOUS = {"MASTER_ADDR": "node-1", "MASTER_PORT": "29500"}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
MEGATRON = {
    "tensor_model_parallel_size": 8,
    "pipeline_model_parallel_size": 4,
    "data_parallel_size": 2,
    "global_batch_size": 1024,
    "seq_length": 4096,
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "train_iters": 500_000,
    "micro_batch_size": 1,
    "ckpt_format": "torch_dist",
    "fp16": False,
    "bf16": True,
    "lr": 3e-4,
}


def error_file(job: str, attempt: int = 0, rank: int = 0) -> dict[str, str]:
    """Where torchrun tells a rank to write its error."""
    return {"TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_{job}/none_x1y2/attempt_{attempt}/{rank}/error.json"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"NEMO_LENS_RUN_ID": "mine", "SLURM_JOB_ID": "77"}, "mine"),
        ({"SLURM_JOB_ID": "77", "TORCHELASTIC_RUN_ID": "elastic"}, "77"),
        ({"TORCHELASTIC_RUN_ID": "elastic", **POD, "JOB_NAME": "job"}, "elastic"),
        ({"TORCHELASTIC_RUN_ID": "none", **POD, "JOB_NAME": "job", **RENDEZVOUS}, "job"),
        ({"TORCHELASTIC_RUN_ID": "", **POD, "AIHC_JOB_NAME": "aihc", "JOB_NAME": "job"}, "aihc"),
        ({**POD, "PYTORCHJOB_NAME": "pytorch"}, "pytorch"),
        ({**POD, "VC_JOB_NAME": "volcano"}, "volcano"),
    ],
)
def test_the_first_name_that_the_environment_has_is_the_runs(
    environ: dict[str, str], expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A name given, then Slurm's, torchrun's and Kubernetes', without a word in the log."""
    assert run_id(read_settings(None, environ), HERE, environ) == expected
    assert caplog.messages == []


def test_a_job_name_outside_kubernetes_is_somebody_elses() -> None:
    """A build server sets JOB_NAME, too; the name of a pod is not the name of its job."""
    assert run_id(Settings(), HERE, {"JOB_NAME": "nightly", **RENDEZVOUS, **error_file("a")}) != "nightly"
    pods = [{**POD, "HOSTNAME": f"train-worker-{index}", **RENDEZVOUS} for index in range(2)]
    assert len({run_id(Settings(), HERE, pod) for pod in pods}) == 1


def test_on_one_node_the_id_is_the_jobs_own(caplog: pytest.LogCaptureFixture) -> None:
    """Under torchrun all ranks and attempts of a job share an id, which the next job at the address does not."""
    first = {
        run_id(
            Settings(),
            Place(rank=rank, world_size=8, local_rank=rank, local_world_size=8),
            {**RENDEZVOUS, "MASTER_PORT": str(29500 + attempt), **error_file("a", attempt, rank)},
        )
        for rank in range(8)
        for attempt in range(2)
    }
    second = run_id(Settings(), HERE, {**RENDEZVOUS, **error_file("b")})
    assert len(first) == 1
    assert second not in first
    assert all(re.fullmatch("[0-9a-f]{12}", found) for found in (*first, second))
    assert caplog.messages == []


@pytest.mark.parametrize("environ", [{}, error_file("a")])
def test_across_nodes_the_rendezvous_is_what_ranks_share(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """All ranks make the same id of it; since the next run there makes it, too, rank 0 says what to set."""
    found = set()
    for rank in range(16):
        where = Place(rank=rank, world_size=16, local_rank=rank % 8, local_world_size=8)
        own = {name: value.replace("torchelastic_a", f"torchelastic_{rank // 8}") for name, value in environ.items()}
        found.add(run_id(Settings(), where, {**RENDEZVOUS, **own}))
    assert len(found) == 1
    assert run_id(Settings(), where, {**RENDEZVOUS, "MASTER_PORT": "29501"}) not in found
    assert caplog.messages == [
        "emitter.run_id: a run must have an id of its own (got one made of node-1:29500, which the next run there "
        "has, too). Set NEMO_LENS_RUN_ID, the same on all ranks."
    ]


def test_without_a_rendezvous_the_id_cannot_be_shared(caplog: pytest.LogCaptureFixture) -> None:
    """A process that is alone needs none; of several, rank 0 says what to set."""
    alone = [run_id(Settings(), Place(), {}) for _ in range(2)]
    assert len(set(alone)) == 2
    assert all(re.fullmatch("[0-9a-f]{12}", found) for found in alone)
    assert caplog.messages == []
    for rank in range(4):
        run_id(Settings(), Place(rank=rank, world_size=4), {"MASTER_ADDR": "node-1"})
    assert caplog.messages == [
        "emitter.run_id: ranks must share an id (got nothing in common of 4 ranks). "
        "Set NEMO_LENS_RUN_ID, the same on all ranks."
    ]


@pytest.mark.parametrize(
    ("elastic", "slurm", "given", "attempt"),
    [
        ("", "", None, 0),
        ("0", "", None, 0),
        ("2", "", None, 2),
        ("2", "3", None, 5),
        ("0", "", 4, 4),
        ("2", "3", 4, 5),
    ],
)
def test_the_attempt_is_counted_by_whoever_restarts(elastic: str, slurm: str, given: int | None, attempt: int) -> None:
    """Restarts of torchrun and of Slurm add up; an argument counts where it is more, for torchrun always says 0."""
    environ = {"TORCHELASTIC_RESTART_COUNT": elastic, "SLURM_RESTART_COUNT": slurm}
    assert identity.attempt(environ, given) == attempt
    assert identity.attempt({}, given) == (given or 0)


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_counter_that_is_no_number_is_not_counted(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """A warning names it; the other counter still counts."""
    assert identity.attempt({"TORCHELASTIC_RESTART_COUNT": text, "SLURM_RESTART_COUNT": "2"}) == 2
    assert caplog.record_tuples == [
        (
            "emitter.identity",
            logging.WARNING,
            f"TORCHELASTIC_RESTART_COUNT: must be a number of restarts (got {text!r}). It is not counted.",
        )
    ]


def test_the_resource_has_megatrons_table(tmp_path: Path) -> None:
    """Every attribute of the contract, from Megatron-LM's arguments, and nothing else of them."""
    where = Place(rank=13, world_size=64, local_rank=5, local_world_size=8)
    expected = {
        "service.instance.id": "r7-rank13",
        "dl.local_rank": 5,
        "dl.tensor_parallel.size": 8,
        "dl.pipeline_parallel.size": 4,
        "dl.data_parallel.size": 2,
        "dl.batch_size": 1024,
        "dl.sequence_length": 4096,
        "megatron.num_layers": 32,
        "megatron.hidden_size": 4096,
        "megatron.num_attention_heads": 32,
        "megatron.train_iters": 500_000,
        "megatron.micro_batch_size": 1,
        "megatron.ckpt_format": "torch_dist",
        "megatron.precision": "bf16",
    }
    for options in (MEGATRON, argparse.Namespace(**MEGATRON)):
        found = resource(Settings(), where, "r7", {}, options, tmp_path / "none")
        assert found.stable == expected
        assert found.volatile == {"host.name": socket.gethostname(), "process.pid": os.getpid()}


def test_what_is_not_known_is_left_out(tmp_path: Path) -> None:
    """Without options a resource says who it is and no more; an option that is no plain value is no attribute."""
    least = {"service.instance.id": "r7-rank0", "dl.local_rank": 0}
    assert resource(Settings(), HERE, "r7", {}, None, tmp_path / "none").stable == least
    odd = {"num_layers": None, "hidden_size": [], "ckpt_format": "/mnt/checkpoints", "lr": 1.0}
    assert resource(Settings(), HERE, "r7", {}, odd, tmp_path / "none").stable == least
    old = {"dist_ckpt_format": "zarr", "ckpt_format": None}
    assert resource(Settings(), HERE, "r7", {}, old, tmp_path / "none").stable["megatron.ckpt_format"] == "zarr"


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"fp16": True, "bf16": False}, "fp16"),
        ({"bf16": True}, "bf16"),
        ({"fp16": False, "bf16": False}, "fp32"),
        ({"precision": "bf16-mixed"}, "bf16-mixed"),
        ({"lr": 1.0}, None),
    ],
)
def test_the_precision_is_what_the_flags_say(options: dict[str, object], precision: str | None, tmp_path: Path) -> None:
    """Neither of Megatron-LM's flags is fp32; a program without such flags names it or leaves it out."""
    stable = resource(Settings(), HERE, "r7", {}, options, tmp_path / "none").stable
    assert stable.get("megatron.precision") == precision
    assert run_info(options, 0).get("precision") == precision


@pytest.mark.parametrize(
    ("flags", "environ", "name"),
    [
        ({}, {}, None),
        ({}, {"OTEL_SERVICE_NAME": "pretrain"}, "pretrain"),
        ({"otel_service_name": "megatron-lm"}, {}, "megatron-lm"),
    ],
)
def test_the_services_name_is_there_if_given(
    flags: dict[str, str], environ: dict[str, str], name: str | None, tmp_path: Path
) -> None:
    """The default is left to the SDK, which knows OTEL_RESOURCE_ATTRIBUTES."""
    settings = read_settings(argparse.Namespace(**flags), environ)
    assert resource(settings, HERE, "r7", environ, None, tmp_path / "none").stable.get("service.name") == name


def test_slurm_and_kubernetes_are_told_by_what_lasts(tmp_path: Path) -> None:
    """Job, partition and namespace outlast a restart; node and pod do not. Pods are looked for in Kubernetes only."""
    environ = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NAME": "pretrain",
        "SLURM_JOB_PARTITION": "h100",
        "SLURM_CLUSTER_NAME": "alps",
        "SLURMD_NODENAME": "n12",
        "POD_NAMESPACE": "training",
        "JOB_NAME": "llama",
        "NODE_NAME": "gpu-4",
        "HOSTNAME": "llama-0-x7k2p",
    }
    user = Settings(user_id="team-a")
    slurm = resource(user, HERE, "r7", environ, None, tmp_path / "none")
    assert slurm.stable == {
        "service.instance.id": "r7-rank0",
        "dl.local_rank": 0,
        "nemo.user.id": "team-a",
        "slurm.job.id": "77",
        "slurm.job.name": "pretrain",
        "slurm.job.partition": "h100",
        "slurm.cluster": "alps",
    }
    own = {"host.name": socket.gethostname(), "process.pid": os.getpid(), "slurm.node": "n12"}
    assert slurm.volatile == own
    both = resource(user, HERE, "r7", {**environ, **POD}, None, tmp_path / "none")
    assert both.stable == {**slurm.stable, "k8s.namespace.name": "training", "k8s.job.name": "llama"}
    assert both.volatile == {**own, "k8s.pod.name": "llama-0-x7k2p", "k8s.node.name": "gpu-4"}


@pytest.mark.parametrize(
    ("environ", "local_world_size", "count"),
    [
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0,1"}, 2, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, None, 2),
        ({"CUDA_VISIBLE_DEVICES": "5"}, 8, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 8, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 1, None),
        ({}, None, 3),
    ],
)
def test_gpus_are_counted_without_a_library(
    environ: dict[str, str], local_world_size: int | None, count: int | None, tmp_path: Path
) -> None:
    """What Slurm allocated, what the ranks of the node see, or what the driver lists; one rank's own is no count."""
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / name).mkdir()
    where = Place(world_size=8, local_world_size=local_world_size)
    assert resource(Settings(), where, "r7", environ, None, tmp_path).stable.get("dl.gpu.count") == count


def test_the_runs_info_has_the_catalogs_attributes() -> None:
    """Everything as text; a model's name is shown if it is a name."""
    info = run_info({**MEGATRON, "model": "llama-3-8b"}, 2)
    assert info == {"attempt": "2", "tp": "8", "pp": "4", "dp": "2", "precision": "bf16", "model": "llama-3-8b"}
    assert set(info) == set(catalog.RUN_INFO.attributes)
    assert run_info({"model": object()}, 0) == run_info(None, 0) == {"attempt": "0"}
    assert run_info({"model_name": "/mnt/models/llama"}, 0) == {"attempt": "0"}
