"""What comes from outside: no text, number or exception of a program's stops an export."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from collectors import over_http
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from emitter import catalog, export, spans
from emitter.instruments import record

ROOT = Path(__file__).resolve().parent.parent
STRANGE = os.fsdecode(b"entra\xeenement")
"""How Python reads a variable in Latin-1."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine counts."""
    for name in os.environ:
        if name.startswith(("OTEL_", "MEGATRON_OTEL_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)


def labels(body: str, name: str) -> dict[str, str]:
    """Labels of the only sample of a name."""
    families = text_string_to_metric_families(body)
    (found,) = [sample for family in families for sample in family.samples if sample.name == name]
    return found.labels


PROGRAM = """
import urllib.request
from emitter import TrainingRun
with TrainingRun("run-7", to="scrape:0", config={"tensor_model_parallel_size": 2**64}, linger_s=0) as run:
    run.step(loss=2.5)
    host, port = run.telemetry.addresses[0]
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
        print(answer.read().decode())
"""


def test_a_strange_byte_in_a_variable_stops_no_scrape() -> None:
    """A job whose name is Latin-1 is scraped, with a ? for what is not UTF-8."""
    environ = {b"SLURM_JOB_NAME": os.fsencode(STRANGE), b"OTEL_RESOURCE_ATTRIBUTES": b"t\xeeam=\xff,team=x"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environb, b"PYTHONUTF8": b"1", **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    info = labels(done.stdout, "target_info")
    assert (info["slurm_job_name"], info["team"], info["t_am"]) == ("entra?nement", "x", "?")
    assert float(info["dl_tensor_parallel_size"]) == 2.0**64


def test_a_strange_attribute_stops_no_export(caplog: pytest.LogCaptureFixture) -> None:
    """A metric's attribute is cleaned before it is a label, whichever way it goes."""
    with over_http() as collector, export.start("run-7", [collector.to, "scrape:0"]) as out:
        record(out.meter, catalog.RUN_INFO, 1, {"model": STRANGE, "dp": 2**64})
        host, port = out.addresses[0]
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5) as answer:
            shown = labels(answer.read().decode(), "megatron_run_info")
        assert out.flush()
    assert (shown["model"], float(shown["dp"])) == ("entra?nement", 2.0**64)
    assert collector.values(catalog.RUN_INFO.name)[-1:] == [1]
    assert caplog.records == []


def test_strange_spans_are_encoded(caplog: pytest.LogCaptureFixture) -> None:
    """A span with a strange name, attribute and exception leaves whole, and takes no other with it."""
    ended = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ended))
    with pytest.raises(OSError, match="entra"), spans.span_cm(STRANGE, provider.get_tracer("test"), file=STRANGE):
        raise OSError(STRANGE)
    encoded = encode_spans(ended.get_finished_spans()).resource_spans[0].scope_spans[0].spans[0]

    def texts(attributes: Any) -> dict[str, str]:
        return {attribute.key: attribute.value.string_value for attribute in attributes}

    assert (encoded.name, texts(encoded.attributes)) == ("entra?nement", {"file": "entra?nement"})
    event = texts(encoded.events[0].attributes)
    assert (event["exception.type"], event["exception.message"]) == ("OSError", "entra?nement")
    assert event["exception.stacktrace"].endswith("OSError: entra?nement\n")
    assert caplog.records == []


def test_a_long_resource_is_cleaned_and_not_cut() -> None:
    """Some detectors of the SDK find lists of texts: each is cleaned, none is lost."""
    attributes = export.sdk_resource("run-7", 0, {"args": ("x" * 999, STRANGE), "n": 2**64}).attributes  # type: ignore[dict-item]
    assert (attributes["args"], attributes["n"]) == (("x" * 999, "entra?nement"), 2.0**64)
