"""Ways out at set-up and at the end: what the environment chooses, what may be missing, who is waited for."""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
import urllib.request
from threading import Thread

import pytest
from collectors import over_http

import emitter
from emitter import catalog
from emitter.destinations import otlp_protocol
from emitter.export import start


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches the SDK."""
    for name in os.environ:
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def test_whoever_scrapes_gets_the_last_values() -> None:
    """A run that ends waits for the next scrape, and for no longer."""
    with start("r", to=["scrape:0"]) as export:
        url = f"http://127.0.0.1:{export.addresses[0][1]}/metrics"
        urllib.request.urlopen(url, timeout=5).read()
        emitter.record(export.meter, catalog.LOSS, 0.125)
        answers: list[bytes] = []
        later = Thread(target=lambda: (time.sleep(0.5), answers.append(urllib.request.urlopen(url, timeout=5).read())))
        later.start()
        begin = time.monotonic()
        export.await_scrape(30)
        assert time.monotonic() - begin < 15
        later.join()
    assert b"megatron_training_loss{" in answers[0]


def test_nobody_is_waited_for_who_never_came() -> None:
    """A run that is not scraped ends at once."""
    with start("r", to=["scrape:0"]) as export:
        begin = time.monotonic()
        export.await_scrape(30)
        assert time.monotonic() - begin < 5


def probe(port: int) -> None:
    """What looks whether a port is open, or alive, and fetches no metrics."""
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    urllib.request.urlopen(f"http://127.0.0.1:{port}/favicon.ico", timeout=5).read()


def test_a_probe_is_no_scrape(capfd: pytest.CaptureFixture[str]) -> None:
    """Nobody is waited for because of a probe, and a probe does not end the wait for a scrape."""
    with start("r", to=["scrape:0"]) as export:
        port = export.addresses[0][1]
        probe(port)
        begin = time.monotonic()
        export.await_scrape(30)
        assert time.monotonic() - begin < 5
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
        probing = Thread(target=lambda: (time.sleep(0.2), probe(port)))
        probing.start()
        begin = time.monotonic()
        export.await_scrape(1.0)
        assert time.monotonic() - begin >= 0.9
        probing.join()
    assert capfd.readouterr().err == ""


def test_whoever_hangs_up_is_no_news(capfd: pytest.CaptureFixture[str]) -> None:
    """A connection that is reset in mid-request leaves nothing on the training's output."""
    with start("r", to=["scrape:0"]) as export:
        port = export.addresses[0][1]
        for sent in (b"", b"GET /metr", b"\x16\x03\x01 no HTTP\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(sent)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
    assert "Traceback" not in capfd.readouterr().err


def test_a_scraper_that_stays_away_is_not_waited_for_long() -> None:
    """The wait has an end."""
    with start("r", to=["scrape:0"]) as export:
        urllib.request.urlopen(f"http://127.0.0.1:{export.addresses[0][1]}/metrics", timeout=5).read()
        begin = time.monotonic()
        export.await_scrape(0.3)
        assert 0.25 < time.monotonic() - begin < 5


def test_a_forked_child_does_not_keep_the_port() -> None:
    """The port is free when the run is over, even while a data loader lives on."""
    export = start("r", to=["scrape:0"])
    read_end, write_end = os.pipe()
    lives, says_so = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(says_so, b"x")
        os.read(read_end, 1)
        os._exit(0)
    try:
        os.read(lives, 1)
        export.shutdown()
        with start("r", to=[f"scrape:{export.addresses[0][1]}"]):
            pass
    finally:
        os.write(write_end, b"x")
        os.waitpid(child, 0)
        for end in (read_end, write_end, lives, says_so):
            os.close(end)


def test_a_taken_port_is_a_warning_where_training_must_go_on(caplog: pytest.LogCaptureFixture) -> None:
    """Not strict: the other ways out are open all the same."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with start("r", to=[f"scrape:{port}", "scrape:0"], strict=False) as export:
            assert len(export.addresses) == 1
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"scrape:127.0.0.1:{port}: the port must be free")
    assert warning.endswith("Training goes on without.")


@pytest.mark.parametrize(
    ("environ", "protocol"),
    [
        ({}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, "grpc"),
    ],
)
def test_the_environment_chooses_the_protocol(environ: dict[str, str], protocol: str) -> None:
    """The standard variables, the signal's own before the common one; gRPC unless the port says HTTP."""
    assert otlp_protocol("metrics", environ) == protocol


def test_an_unknown_protocol_is_named() -> None:
    """The variable, its value and what is accepted."""
    with pytest.raises(ValueError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL: must be grpc or http/protobuf .*'http/json'"):
        otlp_protocol("metrics", {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})


def test_the_standard_variables_say_where_otlp_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint and headers are read by the exporter itself, as everywhere."""
    with over_http() as there:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", there.to.removeprefix("otlp:"))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        with start("r", to=["otlp"]) as export:
            emitter.record(export.meter, catalog.LOSS, 2.5)
    assert there.paths[0] == "/v1/metrics"
