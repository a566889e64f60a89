"""Test exports: what arrives is what the training program would send."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from collectors import over_grpc, takes_everything
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


def test_an_earlier_ways_threads_are_not_heard() -> None:
    """What is still closing while the next way is tried complains of itself, not of that one."""
    log = logging.getLogger("exporter")
    with ThreadPoolExecutor(1) as earlier, ThreadPoolExecutor(1) as own:
        earlier.submit(log.warning, "%s", "of the way before").result()
        with trial.heard() as messages:
            earlier.submit(log.warning, "%s", "of the way before, later").result()
            own.submit(log.warning, "%s", "of this way").result()
            log.warning("of its opening")
    assert messages == ["of this way", "of its opening"]


def told(monkeypatch: pytest.MonkeyPatch, *, sending: str = "", closing: str = "") -> str:
    """What is said of a way out that does not deliver, and that warns of something while it is sent to, or closed."""

    class Failing:
        def flush(self, timeout_s: float) -> bool:
            return False

        def shutdown(self, timeout_s: float) -> None:
            warn(closing)

    def warn(message: str) -> None:
        if message:
            logging.getLogger("exporter").warning(message)

    monkeypatch.setitem(trial._OPENED, "metrics", lambda *_: (Failing(), lambda: warn(sending)))
    settings = Settings(traces_enabled=False)
    with over_grpc() as collector:
        (way,) = trial.ways((collector.to,), settings, {})
        return trial.attempt(way, sender(settings))


def test_what_is_said_while_closing_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is cancelled by the channel that is closed under it, not by the collector."""
    got = told(monkeypatch, closing="Failed to export, error code: StatusCode.CANCELLED")
    assert got.startswith("the exporter must succeed (got no reason).")


def test_what_is_said_while_sending_is_no_failed_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on without in either case; what the other end says is asked for in the latter."""
    monkeypatch.setattr(trial, "ANSWER_S", 0.0)
    got = told(monkeypatch, sending="must take the metrics (got nothing). Training goes on without.")
    assert "must answer in time" in got
