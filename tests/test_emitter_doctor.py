"""The doctor: what it says of the settings and the ranks, and what of a test export, with real receivers."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collectors import SICK, over_grpc, over_http, takes_everything

from emitter import doctor, trial
from emitter.__main__ import main

ROOT = Path(__file__).resolve().parent.parent
PREFIXES = ("OTEL_", "MEGATRON_OTEL_", "NEMO_LENS_", "SLURM_", "OMPI_", "PMI_", "TORCHELASTIC_", "MASTER_")

Report = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine counts, spans are off, and nobody who does not answer is waited for long."""
    for name in os.environ:
        if (
            name.startswith(PREFIXES)
            or name.endswith("_CA_BUNDLE")
            or name.lower().endswith("_proxy")
            or name in ("RANK", "WORLD_SIZE")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MEGATRON_OTEL_TRACES_ENABLED", "0")
    monkeypatch.setattr(trial, "ANSWER_S", 3.0)  # time enough for a busy machine to answer


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Report:
    """The doctor's exit code and report, with flags and variables."""

    def run(*flags: str, **environ: str) -> tuple[int, str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", *flags])
        return code, capsys.readouterr().out

    return run


def cells(text: str, title: str) -> list[list[str]]:
    """Rows of a table of the report, by its title."""
    lines = text.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()
    return [[cell for cell in line.strip().split("  ") if cell] for line in lines]


def reason(text: str) -> str:
    """The one sentence or two that say what stopped the only test export."""
    ((line,),) = cells(text, "What stopped it")
    return line.partition(", metrics: ")[2]


def table(text: str, title: str) -> dict[str, list[str]]:
    """A table by the first cell of its rows."""
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in cells(text, title)}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that nobody vouches for, with its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        if os.environ.get("CI"):
            raise
        pytest.skip("needs openssl: apt-get install openssl")
    (folder / "both.pem").write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return folder / "both.pem"


def test_every_setting_has_its_source(report: Report) -> None:
    """Variable, flag or default, as in a training program."""
    code, text = report(
        "--otel-service-name", "lm", MEGATRON_OTEL_EXPORTER="console", NEMO_LENS_EXPORT_STRATEGY="all_ranks"
    )
    settings = table(text, "Settings")
    assert code == 0
    assert settings["service_name"] == ["lm", "--otel-service-name"]
    assert settings["rank_strategy"] == ["all_ranks", "NEMO_LENS_EXPORT_STRATEGY"]
    assert settings["exporter"] == ["console", "MEGATRON_OTEL_EXPORTER"]
    assert settings["sampling_strategy"] == ["-", "default"]


@pytest.mark.parametrize(
    ("environ", "source"),
    [
        ({"NEMO_LENS_RUN_ID": "r7", "SLURM_JOB_ID": "77"}, ["r7", "NEMO_LENS_RUN_ID"]),
        ({"SLURM_JOB_ID": "77"}, ["77", "SLURM_JOB_ID"]),
        ({"TORCHELASTIC_RUN_ID": "elastic"}, ["elastic", "TORCHELASTIC_RUN_ID"]),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "VC_JOB_NAME": "volcano"}, ["volcano", "VC_JOB_NAME"]),
    ],
)
def test_the_run_id_has_its_source(report: Report, environ: dict[str, str], source: list[str]) -> None:
    """And the instance is named after it."""
    _, text = report(MEGATRON_OTEL_EXPORTER="console", **environ)
    assert table(text, "This process")["run id"] == source
    assert table(text, "Resource attributes")["service.instance.id"] == [f"{source[0]}-rank0", "on everything"]


def test_an_id_that_cannot_be_shared_is_warned_of(report: Report) -> None:
    """The warnings of a training program are in the report, once each."""
    _, text = report(MEGATRON_OTEL_EXPORTER="console", RANK="0", WORLD_SIZE="4", LOCAL_RANK="0", LOCAL_WORLD_SIZE="4")
    assert table(text, "This process")["run id"][1].startswith("random")
    assert table(text, "This process")["rank"] == ["0 of 4", "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE"]
    assert text.count("ranks must share an id") == 1


def test_a_variable_that_sets_nothing_is_warned_of(report: Report) -> None:
    """On whichever rank the doctor is called."""
    launcher = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"}
    _, text = report(MEGATRON_OTEL_EXPORTER="console", MEGATRON_OTEL_EXPORT_RAET="0.5", **launcher)
    ((warning,), *_) = cells(text, "Warnings")
    assert warning.startswith("MEGATRON_OTEL_EXPORT_RAET: must be a known setting (got another name). Did you mean ")


def test_the_rendezvous_is_named_as_a_source(report: Report) -> None:
    """An id that is made of it is the same on every rank."""
    _, text = report(MEGATRON_OTEL_EXPORTER="console", MASTER_ADDR="node-1", MASTER_PORT="29500")
    assert table(text, "This process")["run id"][1].startswith("the rendezvous")


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, {"export": "15", "do nothing": "0-14 (15)", "scrape ports": "9464"}),
        ({"MEGATRON_OTEL_EXPORT_RANK": "0"}, {"export": "0", "do nothing": "1-15 (15)"}),
        (
            {"MEGATRON_OTEL_RANK_STRATEGY": "all_ranks"},
            {"export": "0-15 (16)", "do nothing": "none", "scrape ports": "9464-9471 (8)"},
        ),
        (
            {"MEGATRON_OTEL_RANK_STRATEGY": "sampled", "MEGATRON_OTEL_EXPORT_SAMPLE_RATE": "0.25"},
            {"export": "0, 4, 8, 12 (4)", "scrape ports": "9464, 9468 (2)"},
        ),
        ({"MEGATRON_OTEL_RANK_STRATEGY": "first_rank_per_node"}, {"export": "0, 8 (2)", "scrape ports": "9464"}),
    ],
)
def test_it_says_what_each_rank_would_do(report: Report, strategy: dict[str, str], expected: dict[str, str]) -> None:
    """Of a job of any size, also before there is one; with the port of each rank that is scraped."""
    flags = ("--world-size", "16", "--local-world-size", "8")
    _, text = report(*flags, MEGATRON_OTEL_EXPORTER="scrape,console", **strategy)
    shown = table(text, "Ranks")
    assert {name: shown[name] for name in expected} == {name: [value] for name, value in expected.items()}


def test_a_long_list_of_ranks_is_cut_short(report: Report) -> None:
    """A job of thousands fits a line."""
    strategy = {"MEGATRON_OTEL_RANK_STRATEGY": "first_rank_per_node", "MEGATRON_OTEL_EXPORTER": "console"}
    _, text = report("--world-size", "4096", "--local-world-size", "8", **strategy)
    assert table(text, "Ranks")["export"] == ["0, 8, 16, 24, 32, 40, …, 4088 (512)"]


def test_telemetry_that_is_off_is_checked_all_the_same(report: Report) -> None:
    """And it is said that it is off."""
    code, text = report(MEGATRON_OTEL_EXPORTER="console")
    assert code == 0
    assert "Telemetry is off: set MEGATRON_OTEL_ENABLED=1." in text
    _, text = report(MEGATRON_OTEL_ENABLED="1")
    assert "Telemetry is off" not in text


def test_a_switch_that_is_neither_on_nor_off_is_a_wrong_setting(report: Report) -> None:
    """As any other wrong value: listed, no traceback."""
    code, text = report(MEGATRON_OTEL_ENABLED="maybe")
    assert code == 1
    assert "MEGATRON_OTEL_ENABLED: must be one of" in " ".join(line for (line,) in cells(text, "Wrong settings"))


def test_wrong_settings_are_listed_and_nothing_is_exported(report: Report) -> None:
    """All at once, also those that a training program finds later only."""
    with over_http() as collector:
        code, text = report(
            MEGATRON_OTEL_EXPORTER=collector.to,
            MEGATRON_OTEL_TRACES_ENABLED="1",
            MEGATRON_OTEL_EXPORT_RANK="4",
            MEGATRON_OTEL_SPAN_GROUPS="chekpoint",
        )
        assert not collector.requests
    wrong = " ".join(line for (line,) in cells(text, "Wrong settings"))
    assert code == 1
    for name in ("export_rank must be", "'chekpoint'"):
        assert name in wrong
    assert text.endswith("Nothing was exported. Set these right first.\n")


def test_strategies_of_a_program_are_not_called_wrong(report: Report) -> None:
    """The doctor cannot know what the program registers: it says so, and the test export is made."""
    code, text = report(
        MEGATRON_OTEL_EXPORTER="console",
        MEGATRON_OTEL_RANK_STRATEGY="by_rack",
        MEGATRON_OTEL_SAMPLING_STRATEGY="slow_steps",
    )
    warnings = [line for (line,) in cells(text, "Warnings")]
    assert (code, len(warnings)) == (0, 2)
    for strategy, warning in zip(("by_rack", "slow_steps"), warnings, strict=True):
        assert f"(got {strategy!r})" in warning
        assert warning.endswith("If the program registers it, all is well: the doctor cannot see that.")


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({"MEGATRON_OTEL_EXPORTER": "otpl"}, "MEGATRON_OTEL_EXPORTER: a destination is "),
        ({"MEGATRON_OTEL_EXPORT_SAMPLE_RATE": "2"}, "MEGATRON_OTEL_EXPORT_SAMPLE_RATE: must be a number from 0.0"),
        ({"RANK": "four", "WORLD_SIZE": "4"}, "RANK: must be a whole number"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_PROTOCOL: must be grpc or http/protobuf"),
        ({"OTEL_SDK_DISABLED": "true"}, "OTEL_SDK_DISABLED: must not be true"),
        ({"MEGATRON_OTEL_METRICS_ENABLED": "0"}, "MEGATRON_OTEL_EXPORTER: must take what is enabled"),
    ],
)
def test_a_wrong_setting_is_named(report: Report, environ: dict[str, str], line: str) -> None:
    """Variable, value and what is accepted."""
    code, text = report(**environ)
    assert code == 1
    assert [wrong.startswith(line) for (wrong,) in cells(text, "Wrong settings")] == [True]


@pytest.mark.parametrize("flags", [["--world-size", "0"], ["--local-world-size", "x"], ["--wrong"]])
def test_a_wrong_call_is_exit_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With one line that says what is wrong."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *flags])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_signal_is_tried(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, spans and logs each go where they would in training, under the doctor's own run id."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with takes_everything() as (port, requests):
        code, text = report(
            MEGATRON_OTEL_EXPORTER="otlp",
            MEGATRON_OTEL_TRACES_ENABLED="1",
            MEGATRON_OTEL_LOGS_ENABLED="1",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}/base/",
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{port}/spans",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            NEMO_LENS_RUN_ID="the-real-run",
        )
    assert code == 0, text
    assert {path for path, _ in requests} == {"/base/v1/metrics", "/spans", "/base/v1/logs"}
    shown = [row[3].strip() for row in cells(text, text.partition("Test export")[2].partition("\n")[0])]
    assert shown == [f"http://127.0.0.1:{port}{path}" for path in ("/base/v1/metrics", "/spans", "/base/v1/logs")]
    assert not any(b"the-real-run" in body for _, body in requests)
    assert all(b"doctor-" in body for _, body in requests)


@pytest.mark.parametrize("collector_over", [over_http, over_grpc])
def test_a_test_export_arrives(report: Report, collector_over: Callable[..., Any]) -> None:
    """Over either protocol; one metric, and nothing that looks like training."""
    with collector_over() as collector:
        code, text = report(MEGATRON_OTEL_EXPORTER=collector.to)
    assert code == 0
    assert text.endswith("1 of 1 arrived.\n")
    names = {m.name for q in collector.requests for r in q.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert collector.values("megatron.run.info")[0] == 1
    values = {name for name in names if any(collector.values(name))}
    assert values == {"megatron.run.info"}


REASONS = {
    "refusing": "somebody must listen at 127.0.0.1:",
    "swallowing": "must take connections (got no answer in 2 s)",
    "nameless": "a host 'collector.invalid' must be known",
    "hanging": "must answer in time (got nothing)",
    "400": "the collector must take metrics (got 400)",
    "500": "the collector must take metrics (got ",
    "503": "the collector must take metrics (got Service Unavailable)",
    "invalid": "the collector must take metrics (got INVALID_ARGUMENT)",
    "internal": "the collector must take metrics (got INTERNAL)",
    "unavailable": "the collector must take metrics (got UNAVAILABLE)",
}


@pytest.mark.parametrize("name", SICK)
def test_what_stops_an_export_is_one_sentence(name: str, report: Report) -> None:
    """However a collector fails, the doctor says how, and what to do."""
    with SICK[name]() as collector:
        code, text = report(MEGATRON_OTEL_EXPORTER=collector.to)
    assert code == 1
    assert REASONS[name.partition(" ")[2]] in reason(text)
    assert text.endswith("0 of 1 arrived.\n")


@pytest.mark.parametrize(
    ("status", "advice"), [(401, "Check OTEL_EXPORTER_OTLP_HEADERS."), (404, "Check the path, and that the collector")]
)
def test_a_status_has_its_advice(status: int, advice: str, report: Report) -> None:
    """Who is not let in lacks a header; where nothing is found the path is wrong."""
    with over_http(status=status) as collector:
        _, text = report(MEGATRON_OTEL_EXPORTER=collector.to)
    assert f"(got {status}). {advice}" in reason(text)


def test_the_wrong_protocol_is_found(report: Report) -> None:
    """GRPC spoken to a port of HTTP, HTTP to one of gRPC, TLS to one without."""
    with over_http() as collector:
        port = collector.to.rpartition(":")[2]
        _, text = report(MEGATRON_OTEL_EXPORTER=f"otlp:grpc://127.0.0.1:{port}")
        assert f"must speak grpc (got http/protobuf). Write otlp:http://127.0.0.1:{port}." in reason(text)
        _, text = report(MEGATRON_OTEL_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
        assert "Set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf." in reason(text)
        _, text = report(MEGATRON_OTEL_EXPORTER=f"otlp:https://127.0.0.1:{port}")
        assert "must speak TLS (got WRONG_VERSION_NUMBER)" in reason(text)
    with over_grpc() as collector:
        _, text = report(MEGATRON_OTEL_EXPORTER=collector.to.replace("grpc:", "http:"))
        assert "must speak http/protobuf (got grpc)" in reason(text)


def test_tls_is_found_and_told_from_distrust(
    report: Report, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate nobody vouches for, one that is, and a variable of the HTTP library that counts before ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with takes_everything(context) as (port, _):
        code, text = report(MEGATRON_OTEL_EXPORTER=f"otlp:https://127.0.0.1:{port}")
        assert (code, "must be trusted (got 'self-signed certificate')" in reason(text)) == (1, True)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
        code, text = report()
        assert code == 0, text
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", ssl.get_default_verify_paths().cafile or os.devnull)
        code, text = report()
        assert code == 0 or "unset REQUESTS_CA_BUNDLE" in reason(text)  # not every version of the exporter looks at it


def test_a_scrape_is_fetched_and_its_port_is_free_again(report: Report) -> None:
    """Nothing stays open; a port that somebody has is said to be taken."""
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {"MEGATRON_OTEL_EXPORTER": "scrape", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
    code, text = report(**environ)
    assert (code, f"http://127.0.0.1:{port}/metrics" in text) == (0, True)
    assert threading.active_count() <= before  # a thread of an earlier test may have ended meanwhile
    with socket.create_server(("127.0.0.1", port)):
        code, text = report(**environ)
    assert code == 1
    assert "the port must be free to listen on" in reason(text)


def test_the_console_does_not_spill_into_the_report(report: Report) -> None:
    """The test export is read, not shown."""
    code, text = report(MEGATRON_OTEL_EXPORTER="console", MEGATRON_OTEL_TRACES_ENABLED="1")
    assert code == 0
    assert "resource_metrics" not in text
    assert text.endswith("2 of 2 arrived.\n")


def test_no_secret_is_printed(report: Report) -> None:
    """Neither of a URL nor of headers nor of resource attributes, whether it arrives or not."""
    hidden = ("pa55word", "t0ken", "0123456789abcdef0123456789abcdef")
    attributes = f"team=vision,key={hidden[2]}"
    for port in ("1", "99999999"):
        _, text = report(
            MEGATRON_OTEL_EXPORTER=f"otlp:http://user:pa55word@127.0.0.1:{port}/v1/metrics?key=t0ken,otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT="http://user:pa55word@127.0.0.1:1/?key=t0ken",
            OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20t0ken",
            OTEL_RESOURCE_ATTRIBUTES=attributes,
        )
        assert not [secret for secret in hidden if secret in text]
        assert "127.0.0.1" in text
    _, text = report(MEGATRON_OTEL_EXPORTER="console")
    assert table(text, "Resource attributes")["team"] == ["vision", "on everything"]
    assert table(text, "Resource attributes")["key"][0] == "(not shown)"


def test_without_the_sdk_it_says_what_to_install() -> None:
    """In an image that has the OpenTelemetry API alone the report is there all the same."""
    hide = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter')):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from emitter.__main__ import main\n"
        "sys.exit(main(['doctor']))\n"
    )
    environ = {**os.environ, "MEGATRON_OTEL_TRACES_ENABLED": "1", "MEGATRON_OTEL_LOGS_ENABLED": "1"}
    command = [sys.executable, "-W", "error", "-c", hide]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("Install megatron-watch[otlp].") == 3
    assert "service.instance.id" in done.stdout


def test_its_help_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags of training programs included, since they count over the environment."""
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    text = capsys.readouterr().out
    for flag in ("--world-size", "--local-world-size", "--otel-span-groups"):
        assert flag in text
    assert "Exit 0" in text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "none"), ([3], "3"), ([0, 1], "0-1 (2)"), ([0, 2, 3, 4], "0, 2-4 (4)")],
)
def test_numbers_next_to_each_other_are_a_range(numbers: list[int], text: str) -> None:
    assert doctor._ranges(numbers) == text
