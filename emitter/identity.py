"""Who a process is: run id, attempt, and the attributes of its resource. Standard library only."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .plain import AttributeValue
from .ranks import Place
from .run_config import Options, as_mapping, safe_text
from .settings import DEFAULT, Settings

JOB_VARIABLES = ("AIHC_JOB_NAME", "PYTORCHJOB_NAME", "VC_JOB_NAME", "JOB_NAME")
"""Variables of a pod that name its job and so are the same in all of its pods, read inside Kubernetes only.

Baidu AIHC sets its own. The others are set in the pod's template, from the job's label: `batch.kubernetes.io/job-name`
(Job), `training.kubeflow.org/job-name` (PyTorchJob), `volcano.sh/job-name`. A pod's own name is not cut up for it:
how many of its parts are the pod's depends on who made it.
"""

RESTART_COUNTERS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")

NVIDIA_DEVICES = Path("/proc/driver/nvidia/gpus")
"""One entry for each GPU of a node."""

ID_LENGTH = 12

_log = logging.getLogger(__name__)


def run_id(settings: Settings, place: Place, environ: Mapping[str, str]) -> str:
    """Name of the run, the same on all of its ranks wherever the environment has one in common.

    Call it on every rank: where the id is not sure to be the run's own, rank 0 warns.
    """
    named = settings.run_id or environ.get("SLURM_JOB_ID") or _elastic_id(environ) or _kubernetes_job(environ)
    if named:
        return named
    advice = "Set NEMO_LENS_RUN_ID, the same on all ranks"
    if not (environ.get("MASTER_ADDR") and environ.get("MASTER_PORT")):
        if place.world_size > 1 and place.rank == 0:
            _log.warning(
                "emitter.run_id: ranks must share an id (got nothing in common of %d ranks). %s.",
                place.world_size,
                advice,
            )
        return os.urandom(ID_LENGTH // 2).hex()
    directory, separator, _ = environ.get("TORCHELASTIC_ERROR_FILE", "").partition("/attempt_")
    if separator and place.world_size == place.local_world_size:
        return _hashed(directory)  # made by torchrun for this job on this node, and kept through its restarts
    if place.rank == 0:
        _log.warning(
            "emitter.run_id: a run must have an id of its own (got one made of %s:%s, which the next run there has, "
            "too). %s.",
            environ["MASTER_ADDR"],
            environ["MASTER_PORT"],
            advice,
        )
    return _hashed(f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}")


def cleaned(run_id: str) -> str:
    """The run id as a label value that no query can be broken by: backticks quote it in a panel.

    Raises: ValueError if nothing is there.
    """
    if not run_id.strip():
        raise ValueError(f"emitter: a run has an id (got {run_id!r}). Name the run.")
    unfit = ("Cc", "Cs", "Zl", "Zp")  # control characters, halves of surrogate pairs, line and paragraph separators
    clean = "".join("_" if char == "`" or unicodedata.category(char) in unfit else char for char in run_id)
    if clean != run_id:
        _log.warning("emitter: a run id has no control characters or backticks (got %r). It is %r.", run_id, clean)
    return clean


def _elastic_id(environ: Mapping[str, str]) -> str:
    given = environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if given == "none" else given  # torchrun's word for no id


def _kubernetes_job(environ: Mapping[str, str]) -> str:
    return _first(environ, JOB_VARIABLES) if _in_kubernetes(environ) else ""


def _in_kubernetes(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("KUBERNETES_SERVICE_HOST"))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environ.get(name, ""))), "")


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:ID_LENGTH]


def attempt(environ: Mapping[str, str], given: int | None = None) -> int:
    """Number of the attempt, from 0: what the restart counters add up to, or `given` where that is more."""
    return max(given or 0, sum(_count(name, environ) for name in RESTART_COUNTERS))


def _count(name: str, environ: Mapping[str, str]) -> int:
    text = environ.get(name, "")
    if text and not text.isdecimal():
        _log.warning("%s: must be a number of restarts (got %r). It is not counted.", name, text)
    return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, kw_only=True)
class ResourceAttributes:
    """Attributes of a process's resource."""

    stable: dict[str, AttributeValue]
    """The same after a restart: these may become labels."""
    volatile: dict[str, AttributeValue]
    """Of this very process, pod or node: a label of them would be a new series at each restart."""


# Attribute and the options that it is taken from, the first that a program has.
_OPTIONS = (
    ("dl.tensor_parallel.size", ("tensor_model_parallel_size",)),
    ("dl.pipeline_parallel.size", ("pipeline_model_parallel_size",)),
    ("dl.data_parallel.size", ("data_parallel_size",)),
    ("dl.batch_size", ("global_batch_size",)),
    ("dl.sequence_length", ("seq_length",)),
    ("megatron.num_layers", ("num_layers",)),
    ("megatron.hidden_size", ("hidden_size",)),
    ("megatron.num_attention_heads", ("num_attention_heads",)),
    ("megatron.train_iters", ("train_iters",)),
    ("megatron.micro_batch_size", ("micro_batch_size",)),
    ("megatron.ckpt_format", ("ckpt_format", "dist_ckpt_format")),
)

# Attribute of catalog.RUN_INFO and its options.
_INFO = (
    ("tp", ("tensor_model_parallel_size",)),
    ("pp", ("pipeline_model_parallel_size",)),
    ("dp", ("data_parallel_size",)),
    ("model", ("model_name", "model")),
)

# Attribute and its variables.
_SLURM = (
    ("slurm.job.id", ("SLURM_JOB_ID",)),
    ("slurm.job.name", ("SLURM_JOB_NAME",)),
    ("slurm.job.partition", ("SLURM_JOB_PARTITION",)),
    ("slurm.cluster", ("SLURM_CLUSTER_NAME",)),
)
_SLURM_VOLATILE = (("slurm.node", ("SLURMD_NODENAME",)),)
_KUBERNETES = (("k8s.namespace.name", ("POD_NAMESPACE",)), ("k8s.job.name", JOB_VARIABLES))
_KUBERNETES_VOLATILE = (("k8s.pod.name", ("POD_NAME", "HOSTNAME")), ("k8s.node.name", ("NODE_NAME",)))


def resource(
    settings: Settings,
    place: Place,
    run_id: str,
    environ: Mapping[str, str],
    options: Options | None = None,
    devices: Path = NVIDIA_DEVICES,
) -> ResourceAttributes:
    """Attributes that say what runs where; what is not known is left out.

    The service's name is among them only if somebody gave it: else OTEL_RESOURCE_ATTRIBUTES may, which the SDK reads.
    """
    given = as_mapping(options)
    stable: dict[str, AttributeValue] = {
        "service.instance.id": f"{run_id}-rank{place.rank}",
        "dl.local_rank": place.local_rank,
        **_taken(_OPTIONS, lambda name: _attribute(given.get(name))),
        **_taken(_SLURM, environ.get),
    }
    volatile: dict[str, AttributeValue] = {
        "host.name": socket.gethostname(),
        "process.pid": os.getpid(),
        **_taken(_SLURM_VOLATILE, environ.get),
    }
    if _in_kubernetes(environ):
        stable |= _taken(_KUBERNETES, environ.get)
        volatile |= _taken(_KUBERNETES_VOLATILE, environ.get)
    if precision := _precision(given):
        stable["megatron.precision"] = precision
    if settings.user_id:
        stable["nemo.user.id"] = settings.user_id
    if settings.sources.get("service_name", DEFAULT) != DEFAULT or settings.service_name != Settings.service_name:
        stable["service.name"] = settings.service_name
    if gpus := _gpu_count(place, environ, devices):
        stable["dl.gpu.count"] = gpus
    return ResourceAttributes(stable=stable, volatile=volatile)


def run_info(options: Options | None, attempt: int) -> dict[str, str]:
    """Attributes of `catalog.RUN_INFO`; what is not known is left out."""
    given = as_mapping(options)
    info = {name: str(value) for name, value in _taken(_INFO, lambda name: _attribute(given.get(name))).items()}
    if precision := _precision(given):
        info["precision"] = precision
    return {"attempt": str(attempt), **info}


def _taken(
    table: tuple[tuple[str, tuple[str, ...]], ...], value_of: Callable[[str], AttributeValue | None]
) -> dict[str, AttributeValue]:
    """The attributes of a table that have a value; of several names the first that has one counts."""
    found = {attribute: next(filter(_known, map(value_of, names)), None) for attribute, names in table}
    return {attribute: value for attribute, value in found.items() if value is not None}


def _known(value: object) -> bool:
    return value is not None and value != ""


def _attribute(value: object) -> AttributeValue | None:
    """An option as an attribute: numbers as they are, words if they are plain."""
    return value if isinstance(value, bool | int | float) else None if value is None else safe_text(value)


def _precision(given: Mapping[str, object]) -> str | None:
    """As Megatron-LM's flags say; where there are no such flags, as an option of this name does."""
    flags = ("fp16", "bf16")
    if any(flag in given for flag in flags):
        return next((flag for flag in flags if given.get(flag)), "fp32")
    value = given.get("precision")
    return None if value is None else safe_text(value)


def _gpu_count(place: Place, environ: Mapping[str, str], devices: Path) -> int:
    """GPUs of the run on this node; 0 where that takes a library to find out."""
    allocated = environ.get("SLURM_GPUS_ON_NODE", "")
    if allocated.isdecimal():
        return int(allocated)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        if visible.strip() in ("", "-1"):  # hides all of them
            return 0
        if (count := visible.count(",") + 1) >= (place.local_world_size or 1):  # fewer: each rank sees its own alone
            return count
    try:
        return len(list(devices.iterdir()))
    except OSError:
        return 0
