"""The ways out: the run id on every point, errors at set-up, and a collector that cannot hold up training."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent import futures
from pathlib import Path
from typing import Any

import pytest
from collectors import FOREVER_S, over_grpc, over_http
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import emitter
from emitter import catalog, log_bridge, tracing
from emitter.export import start
from emitter.scrape import OneScrapeAtATime

ROOT = Path(__file__).resolve().parent.parent
VALUES = (1500.0, 2.5, 410.0, 0.75, 1, 3e-4, 1.0e6, 61.0)
NEVER_S = 3600.0
PATIENCE_S = 4.0  # of a busy machine; who waits for a collector that hangs waits 10 s at least


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches the SDK."""
    for name in os.environ:
        if name.startswith(("OTEL_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)


def attributes(carrier: Any) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in carrier.attributes}


def sent_points(request: ExportMetricsServiceRequest) -> dict[str, list[dict[str, str]]]:
    """Attributes of the points of a request, by metric name."""
    found: dict[str, list[dict[str, str]]] = {}
    for of_resource in request.resource_metrics:
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                found[metric.name] = [attributes(point) for point in data.data_points]
    return found


def scrape(address: tuple[str, int]) -> str:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
    return text


def samples(text: str) -> list[Any]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def refused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def check_otlp(request: ExportMetricsServiceRequest) -> None:
    points = sent_points(request)
    assert set(points) == {metric.name for metric in (*catalog.CORE, catalog.NONFINITE)}
    assert all(point[catalog.RUN_ID] == "run-7" for of_metric in points.values() for point in of_metric)
    resource = attributes(request.resource_metrics[0].resource)
    assert catalog.RUN_ID not in resource
    assert resource["service.name"] == "megatron-lm"
    assert resource["service.instance.id"] == "run-7-rank0"
    assert resource["team"] == "x"


def test_otlp_http_carries_the_run_id_on_points() -> None:
    """Over HTTP every point has the run id and the resource has it not, or the label would be sent twice."""
    with over_http() as collector:
        with start("run-7", [collector.to], resource={"team": "x"}, interval_s=NEVER_S) as export:
            emitter.record_training_metrics(export.meter, *VALUES)
            assert export.flush()
        assert set(collector.paths) == {"/v1/metrics"}
        check_otlp(collector.requests[-1])


def test_otlp_grpc_carries_the_run_id_on_points() -> None:
    """The same over gRPC."""
    with over_grpc() as collector:
        with start("run-7", [collector.to], resource={"team": "x"}, interval_s=NEVER_S) as export:
            emitter.record_training_metrics(export.meter, *VALUES)
            assert export.flush()
        check_otlp(collector.requests[-1])


def test_console_carries_the_run_id_on_points(capsys: pytest.CaptureFixture[str]) -> None:
    """The console shows every point with its run id."""
    with start("run-7", ["console"], interval_s=NEVER_S) as export:
        emitter.record_training_metrics(export.meter, *VALUES)
    (of_resource,) = json.loads(capsys.readouterr().out)["resource_metrics"]
    assert of_resource["resource"]["attributes"][catalog.RUN_ID] == "run-7"
    metrics = of_resource["scope_metrics"][0]["metrics"]
    assert len(metrics) == len(catalog.CORE) + 1
    assert all(
        point["attributes"][catalog.RUN_ID] == "run-7" for metric in metrics for point in metric["data"]["data_points"]
    )


def test_scrape_carries_the_run_id_on_series() -> None:
    """Every scraped series names the run, once; target_info does too."""
    with start("run-7", ["scrape:0"]) as export:
        emitter.record_training_metrics(export.meter, *VALUES)
        text = scrape(export.addresses[0])
    found = samples(text)
    assert all(sample.labels["nemo_run_id"] == "run-7" for sample in found)
    assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in found}) == len(found)
    values = {sample.name: sample.value for sample in found}
    assert values["megatron_training_loss"] == 2.5
    assert values["megatron_training_step_duration_ms_milliseconds_count"] == 1
    assert values["megatron_training_skipped_iters_total"] == 1
    assert values["target_info"] == 1


def test_counters_show_zero_before_training() -> None:
    """A run that has recorded nothing already exports its counters at 0."""
    with start("run-7", ["scrape:0"]) as export:
        found = {(s.name, s.labels.get("signal")): s.value for s in samples(scrape(export.addresses[0]))}
    assert found["megatron_training_skipped_iters_total", None] == 0
    assert found["megatron_training_nonfinite_total", "loss"] == 0
    assert found["megatron_training_nonfinite_total", "grad_norm"] == 0


def test_several_ways_out_at_once() -> None:
    """A run can be scraped twice and pushed once; each way sees every value."""
    with over_http() as collector:
        to = ["scrape:0", "scrape:127.0.0.1:0", f"{collector.to}/opentelemetry/v1/metrics"]
        with start("run-7", to, interval_s=NEVER_S) as export:
            emitter.record_training_metrics(export.meter, *VALUES)
            texts = [scrape(address) for address in export.addresses]
        assert len(texts) == 2
        for text in texts:
            assert "megatron_training_step_duration_ms_milliseconds_count" in text
        assert catalog.STEP_DURATION.name in sent_points(collector.requests[-1])
        assert collector.paths[-1] == "/opentelemetry/v1/metrics"


def test_flush_does_not_double_a_scrape() -> None:
    """After a flush a scrape shows each series once."""
    with start("run-7", ["scrape:0"]) as export:
        emitter.record_training_metrics(export.meter, *VALUES)
        assert export.flush()
        assert export.flush()
        assert scrape(export.addresses[0]).count("\nmegatron_training_loss{") == 1


def test_scrapes_at_once_do_not_mix() -> None:
    """Servers that scrape at the same moment get one collection each, with each series once."""
    inside: list[int] = []

    class Slow:
        def __init__(self) -> None:
            self.scrapes = 0

        def collect(self) -> list[Any]:
            self.scrapes += 1
            inside.append(self.scrapes)
            time.sleep(0.01)
            self.scrapes -= 1
            return []

    collector = OneScrapeAtATime(Slow())
    with futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: list(collector.collect()), range(8)))
    assert inside == [1] * 8


def test_registry_of_the_process_is_left_alone() -> None:
    """What else the process serves with prometheus_client does not gain our metrics."""
    with start("run-7", ["scrape:0"]):
        assert b"megatron" not in generate_latest(REGISTRY)


def test_withdrawn_gauge_is_not_scraped() -> None:
    """A NaN loss takes the series away and counts."""
    with start("run-7", ["scrape:0"]) as export:
        emitter.record_training_metrics(export.meter, loss=2.5)
        emitter.record_training_metrics(export.meter, loss=float("nan"))
        text = scrape(export.addresses[0])
    assert "\nmegatron_training_loss{" not in text
    assert [s.value for s in samples(text) if s.labels.get("signal") == "loss"] == [1]


@pytest.mark.parametrize(
    ("given", "cleaned"),
    [
        ("a`b", "a_b"),
        ("a\nb\tc", "a_b_c"),
        ("\x7f\x00\x85", "___"),
        ("a\u2028b\u2029", "a_b_"),
        ("\udcff", "_"),
        ('x"y\\z{}|.* é 模型', 'x"y\\z{}|.* é 模型'),
    ],
)
def test_run_id_is_cleaned_once(given: str, cleaned: str, caplog: pytest.LogCaptureFixture) -> None:
    """Control characters and backticks never reach a label, with one warning; anything else does."""
    with start(given, ["scrape:0"]) as export:
        assert export.run_id == cleaned
        assert {sample.labels["nemo_run_id"] for sample in samples(scrape(export.addresses[0]))} == {cleaned}
    assert len(caplog.records) == (given != cleaned)


@pytest.mark.parametrize("run_id", ["", "  "])
def test_run_id_is_needed(run_id: str) -> None:
    """A run without an id is refused."""
    with pytest.raises(ValueError, match="a run has an id"):
        start(run_id, ["scrape:0"])


def test_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument beats the environment, the environment beats our defaults, and the run id is always ours."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=y,nemo.run.id=other")
    monkeypatch.setenv("SLURM_PROCID", "31")
    with start("run-7", ["scrape:0"], resource={"team": "x"}) as export:
        (info,) = [s for s in samples(scrape(export.addresses[0])) if s.name == "target_info"]
    labels = {key: info.labels[key] for key in ("service_name", "service_instance_id", "team", "nemo_run_id")}
    assert labels == {
        "service_name": "mine",
        "service_instance_id": "run-7-rank31",
        "team": "x",
        "nemo_run_id": "run-7",
    }


def test_nowhere_is_refused() -> None:
    """An empty list of destinations is a mistake."""
    with pytest.raises(ValueError, match="got no destination"):
        start("run-7", [])


def test_taken_port_is_one_clear_line() -> None:
    """A port that is in use is an EmitterError that says so, and leaves nothing open."""
    with start("run-7", ["scrape:0"]) as export:
        _, port = export.addresses[0]
        free = refused_port()
        with pytest.raises(
            emitter.EmitterError, match=rf"^scrape:127\.0\.0\.1:{port}: the port must be free .*use"
        ) as caught:
            start("run-8", [f"scrape:{free}", f"scrape:{port}"])
        assert "\n" not in str(caught.value)
        with start("run-8", [f"scrape:{free}"]) as other:
            assert other.addresses == (("127.0.0.1", free),)


def test_shutdown_closes_the_port_and_may_be_repeated() -> None:
    """After a shutdown nobody listens; recording goes on without effect."""
    export = start("run-7", ["scrape:0"])
    export.shutdown()
    export.shutdown()
    emitter.record_training_metrics(export.meter, *VALUES)
    with pytest.raises(OSError, match="refused"):
        scrape(export.addresses[0])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_refusing_collector_is_reported_once(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    """A collector that is not there costs a handful of lines once, however often the export fails."""
    with start("run-7", [f"otlp:{scheme}://127.0.0.1:{refused_port()}"], interval_s=0.05) as export:
        begun = time.monotonic()
        for _ in range(1000):
            emitter.record_training_metrics(export.meter, *VALUES)
        assert time.monotonic() - begun < PATIENCE_S
        assert not export.flush(0.2)
        begun = time.monotonic()
        export.shutdown(1.0)
        assert time.monotonic() - begun < 1.0 + PATIENCE_S
    said = [str(record.msg) for record in caplog.records]
    assert len(set(said)) == len(said) <= 4, said


def test_hanging_collector_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """While a collector hangs, recording stays quick, the scrape works, and a shutdown takes its time and no more."""
    with over_http(delay_s=FOREVER_S) as collector:
        export = start("run-7", [collector.to, "scrape:0"], interval_s=0.05)
        deadline = time.monotonic() + 30
        while not collector.requests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert collector.requests
        slowest = 0.0
        for _ in range(200):
            begun = time.monotonic()
            emitter.record_training_metrics(export.meter, *VALUES)
            slowest = max(slowest, time.monotonic() - begun)
        assert slowest < PATIENCE_S
        assert "megatron_training_loss" in scrape(export.addresses[0])
        begun = time.monotonic()
        export.shutdown(1.0)
        assert time.monotonic() - begun < 1.0 + PATIENCE_S
    assert len(caplog.records) <= 3


def test_an_export_that_our_shutdown_cuts_is_no_failure_of_the_collector(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is closed under it: nobody is to blame, and nothing is said."""
    with over_grpc() as collector, start("run-7", [collector.to], interval_s=NEVER_S) as export:
        (outgoing,) = export._exporters
        translate = outgoing._exporter._translate_data  # type: ignore[attr-defined]  # the last step before the call

        def cut(data: Any) -> Any:
            outgoing.shutdown(0.0)
            return translate(data)

        monkeypatch.setattr(outgoing._exporter, "_translate_data", cut)
        assert not export.flush()
    assert [record.getMessage() for record in caplog.records if record.name == "emitter.export"] == []
    assert collector.requests == []


@pytest.mark.parametrize("way_out", [log_bridge, tracing])
def test_nor_is_one_of_spans_or_logs(way_out: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Before the end an exporter's exception is reported, but not one that the end has made."""

    class Cut:
        """An exporter under which the channel is closed."""

        def export(self, batch: Any) -> None:
            if batch:
                outgoing.shutdown()
            raise ValueError("closed channel")

        def shutdown(self) -> None:
            """Nothing is open."""

    outgoing = way_out._Outgoing(Cut(), "otlp:http://127.0.0.1")
    for batch, reports in (((), 1), (("a span",), 1)):
        outgoing.export(batch)
        assert sum("closed channel" in record.getMessage() for record in caplog.records) == reports


def test_failing_collector_is_news_again_after_it_worked(caplog: pytest.LogCaptureFixture) -> None:
    """Two outages are two reports; a flush tells whether the metrics arrived."""
    with over_http() as collector, start("run-7", [collector.to], interval_s=NEVER_S) as export:
        reports = []
        for code in (400, 400, 200, 400, 400, 200):
            collector.status = code
            assert export.flush() is (code == 200)
            reports.append(sum(" 400" in record.getMessage() for record in caplog.records))
    assert reports[0] > 0
    assert reports[1] == reports[2] == reports[0]
    assert reports[3] == reports[4] == reports[5] == 2 * reports[0]


def test_others_may_repeat_themselves(caplog: pytest.LogCaptureFixture) -> None:
    """Only the export's own repetitions are left out of an SDK logger, not those of another exporter."""
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    before = list(logging.getLogger(name).filters)
    with over_http() as collector, start("run-7", [collector.to], interval_s=NEVER_S) as export:
        assert export.flush()
        for _ in range(2):
            logging.getLogger(name).warning("theirs")
    assert [record.getMessage() for record in caplog.records].count("theirs") == 2
    assert all(one in before for one in logging.getLogger(name).filters)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


def test_last_values_leave_at_interpreter_exit() -> None:
    """A script that forgets the shutdown still exports its last values, and ends in bounded time."""
    with over_http() as collector:
        done = python(
            "import emitter\n"
            f"export = emitter.start('run-7', ['{collector.to}', 'scrape:0'], interval_s={NEVER_S})\n"
            "emitter.record_training_metrics(export.meter, loss=2.5)\n"
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert catalog.LOSS.name in sent_points(collector.requests[-1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_child_exports_nothing() -> None:
    """A data loader that was forked off does not report in the run's name."""
    with over_http() as collector:
        done = python(
            "import emitter, os, time, warnings\n"
            "warnings.simplefilter('ignore')\n"
            f"export = emitter.start('run-7', ['{collector.to}'], interval_s=0.05)\n"
            "emitter.record_training_metrics(export.meter, loss=2.5)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    emitter.record_training_metrics(export.meter, loss=-7.0)\n"
            "    time.sleep(0.2)\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)\n"
        )
        assert (done.returncode, done.stderr) == (0, "")
        losses = {
            metric.gauge.data_points[0].as_double
            for request in collector.requests
            for metric in request.resource_metrics[0].scope_metrics[0].metrics
            if metric.name == catalog.LOSS.name
        }
        assert losses == {2.5}


def test_disabled_sdk_is_silent() -> None:
    """OTEL_SDK_DISABLED turns everything off without an error."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import emitter; e = emitter.start('r', 'console'); emitter.record_training_metrics(e.meter, 1, 2)",
        ],
        cwd=ROOT,
        env={**os.environ, "OTEL_SDK_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_sdk_names_the_extra() -> None:
    """Without the SDK, importing works and starting says what to install."""
    done = python(
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "import emitter\n"
        "from emitter import start\n"
        "try:\n"
        "    start('r')\n"
        "except emitter.EmitterError as error:\n"
        "    print(error)\n"
    )
    assert done.stdout.startswith("emitter.start: needs the OpenTelemetry SDK")
    assert done.stdout.endswith("Install megatron-watch[otlp].\n")
