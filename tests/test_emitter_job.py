"""A job of sixteen real processes: which of its ranks export, and that the others do nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from collectors import Received, over_http

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parent.parent
RANKS, PER_NODE = 16, 8

RANK = """
import json, sys, threading
from emitter import TrainingRun, instruments, register_rank_strategy
register_rank_strategy("every_fifth", lambda place, settings: place.rank % 5 == 0)
with TrainingRun() as run:
    for loss in (2.0, 1.5):
        run.step(loss=loss, tokens=4096)
    with run.checkpoint():
        pass
    print(json.dumps({
        "run_id": run.run_id,
        "sdk": [name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))],
        "threads": [thread.name for thread in threading.enumerate()],
        "instruments": len(instruments._recorders),
    }))
"""


def job(collector: Received, strategy: dict[str, str]) -> list[dict[str, Any]]:
    """What each rank of a job on two nodes says, as torchrun starts it without a rendezvous id."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environ = {
        **inherited,
        "MEGATRON_OTEL_ENABLED": "1",
        "MEGATRON_OTEL_EXPORTER": "otlp",
        "MEGATRON_OTEL_TRACES_ENABLED": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.to.removeprefix("otlp:"),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "MASTER_ADDR": "node-0",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(PER_NODE),
        **strategy,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", RANK],
            cwd=ROOT,
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank % PER_NODE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]
    return [json.loads(process.communicate(timeout=120)[0]) for process in processes]


def resources(collector: Received) -> set[str]:
    """Instance of each resource that arrived."""
    return {
        attribute.value.string_value
        for request in collector.requests
        for of_resource in request.resource_metrics
        for attribute in of_resource.resource.attributes
        if attribute.key == "service.instance.id"
    }


def run_ids(collector: Received) -> set[str]:
    """Run id of each point that arrived."""
    return {
        attribute.value.string_value
        for request in collector.requests
        for of_resource in request.resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
        for point in getattr(metric, metric.WhichOneof("data")).data_points
        for attribute in point.attributes
        if attribute.key == "nemo.run.id"
    }


@pytest.mark.parametrize(
    ("strategy", "exporting"),
    [
        ({}, [15]),
        ({"MEGATRON_OTEL_RANK_STRATEGY": "all_ranks"}, list(range(RANKS))),
        ({"MEGATRON_OTEL_RANK_STRATEGY": "sampled", "MEGATRON_OTEL_EXPORT_SAMPLE_RATE": "0.25"}, [0, 4, 8, 12]),
        ({"NEMO_LENS_EXPORT_STRATEGY": "first_rank_per_node"}, [0, 8]),
        ({"MEGATRON_OTEL_RANK_STRATEGY": "every_fifth"}, [0, 5, 10, 15]),
    ],
    ids=["single_rank", "all_ranks", "sampled", "first_rank_per_node", "registered"],
)
def test_sixteen_processes_are_one_run(strategy: dict[str, str], exporting: list[int]) -> None:
    """The right ranks export, under one run id; the others import no SDK, start no thread, make no instrument."""
    with over_http() as collector:
        ranks = job(collector, strategy)
    (run_id,) = {rank["run_id"] for rank in ranks}
    assert resources(collector) == {f"{run_id}-rank{rank}" for rank in exporting}
    assert run_ids(collector) == {run_id}
    for rank in set(range(RANKS)) - set(exporting):
        found = ranks[rank]
        assert (found["sdk"], found["threads"], found["instruments"]) == ([], ["MainThread"], 0)
    for rank in exporting:
        found = ranks[rank]
        assert found["sdk"]
        assert len(found["threads"]) > 1
        assert found["instruments"] == 1
