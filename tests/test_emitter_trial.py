"""Test exports: what arrives is what the training program would send."""

from __future__ import annotations

import os

import pytest
from collectors import takes_everything
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from emitter import trial
from emitter.identity import resource
from emitter.ranks import Place
from emitter.settings import Settings

REQUESTS = {
    "metrics": ExportMetricsServiceRequest,
    "traces": ExportTraceServiceRequest,
    "logs": ExportLogsServiceRequest,
}
STRANGE = os.fsdecode(b"entra\xeenement")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine counts."""
    for name in os.environ:
        if name.startswith("OTEL_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def sender(settings: Settings) -> trial.Sender:
    """A rank of a Slurm job whose name is in Latin-1."""
    place = Place(rank=3, world_size=8)
    attributes = resource(settings, place, "doctor-1", {"SLURM_JOB_NAME": STRANGE, "SLURMD_NODENAME": "node-7"})
    return trial.Sender(run_id="doctor-1", place=place, settings=settings, attributes=attributes)


@pytest.mark.parametrize("signal", REQUESTS)
def test_a_test_export_has_the_programs_resource(signal: str) -> None:
    """A resource that is not taken is found by the doctor, not by the run; metrics are without what changes."""
    settings = Settings(**{f"{name}_enabled": name == signal for name in REQUESTS})  # type: ignore[arg-type]
    with takes_everything() as (port, requests):
        (way,) = trial.ways((f"otlp:http://127.0.0.1:{port}",), settings, {})
        assert trial.attempt(way, sender(settings)) == ""
    (of_signal, *_) = REQUESTS[signal].FromString(requests[-1][1]).ListFields()[0][1]
    found = {attribute.key: attribute.value.string_value for attribute in of_signal.resource.attributes}
    assert (found["slurm.job.name"], found["service.instance.id"]) == ("entra?nement", "doctor-1-rank3")
    assert found.get("slurm.node") == (None if signal == "metrics" else "node-7")


def test_a_scrape_of_a_strange_resource_is_tried() -> None:
    """What the program would answer to a scraper is asked for as a scraper does."""
    settings = Settings(traces_enabled=False)
    (way,) = trial.ways(("scrape:0",), settings, {})
    assert trial.attempt(way, sender(settings)) == ""
