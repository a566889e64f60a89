"""provisioning.stack.prometheus: a server that starts, tells what is wrong, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from provisioning.errors import ProvisioningError
from provisioning.stack import prometheus
from provisioning.stack.prometheus import Prometheus, promtool

Start = Callable[..., Prometheus]
NOTHING = Path("/nonexistent/prometheus")


def query(server: Prometheus, expression: str) -> list[dict[str, Any]]:
    """Result of an instant query."""
    url = f"{server.url}/api/v1/query?query={urllib.parse.quote(expression)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """First true value of a condition, or its last one when the time is up."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return value


def rules(path: Path, expression: str) -> Path:
    """A rule file that records an expression as `told`."""
    path.write_text(json.dumps({"groups": [{"name": "g", "rules": [{"record": "told", "expr": expression}]}]}))
    return path


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def target() -> Iterator[str]:
    """Address of an exporter that always says `loss 2`."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(b"loss 2\n")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_rule_file_that_is_not_there_is_refused() -> None:
    """Prometheus passes over a missing rule file in silence; we do not."""
    with pytest.raises(ValueError, match=r"rule_files must be files \(got nowhere\.yaml\)"):
        Prometheus(NOTHING, rule_files=[Path("nowhere.yaml")])


def test_the_url_of_a_server_that_was_not_started_is_an_error() -> None:
    """Nobody is sent to an address where nothing listens."""
    with pytest.raises(ProvisioningError, match=r"must be running \(got none\)"):
        _ = Prometheus(NOTHING).url


def test_a_binary_that_cannot_run_is_one_clear_error() -> None:
    """A path that holds no program is named in the error."""
    with pytest.raises(ProvisioningError, match=r"/nonexistent/prometheus(.|\n)*No such file"), Prometheus(NOTHING):
        pass


@pytest.mark.live
def test_targets_are_scraped_and_rules_evaluated(
    prometheus_binary: Path, start_prometheus: Start, target: str, tmp_path: Path
) -> None:
    """A scraped value arrives, and a rule over it too, within seconds."""
    server = start_prometheus(prometheus_binary, targets=[target], rule_files=[rules(tmp_path / "r.yaml", "loss * 2")])
    told = wait_for(lambda: query(server, "told"))
    assert told[0]["value"][1] == "4"
    assert told[0]["metric"]["job"] == "training"


@pytest.mark.live
def test_intervals_and_sections_reach_the_configuration(prometheus_binary: Path, start_prometheus: Start) -> None:
    """What `config` adds stands beside our own settings, key by key."""
    more = {
        "global": {"external_labels": {"site": "lab"}},
        "scrape_configs": [{"job_name": "other", "static_configs": [{"targets": ["127.0.0.1:1"]}]}],
    }
    server = start_prometheus(
        prometheus_binary, targets=["127.0.0.1:2"], scrape_interval="7s", evaluation_interval="9s", config=more
    )
    with urllib.request.urlopen(f"{server.url}/api/v1/status/config", timeout=10) as answer:
        text = json.load(answer)["data"]["yaml"]
    for part in (
        "scrape_interval: 7s",
        "evaluation_interval: 9s",
        "site: lab",
        "job_name: training",
        "job_name: other",
    ):
        assert part in text


@pytest.mark.live
def test_history_is_there_from_the_start(prometheus_binary: Path, start_prometheus: Start, tmp_path: Path) -> None:
    """OpenMetrics text of a year ago answers the first query."""
    then = int(time.time()) - 365 * 86_400
    lines = [f'loss{{run="r1"}} {n} {then + 10 * n}' for n in range(1_000)]
    history = tmp_path / "history.txt"
    history.write_text("\n".join(["# TYPE loss gauge", *lines, "# EOF", ""]))
    server = start_prometheus(prometheus_binary, blocks=history)
    assert query(server, f"loss @ {then + 9_990}")[0]["value"][1] == "999"


@pytest.mark.live
def test_history_that_is_no_openmetrics_is_one_clear_error(prometheus2: Path, tmp_path: Path) -> None:
    """What promtool says about a bad file is in the error."""
    (tmp_path / "bad.txt").write_text("loss 1 1\n")
    with (
        pytest.raises(ProvisioningError, match=r"create-blocks-from(.|\n)*EOF"),
        Prometheus(prometheus2, blocks=tmp_path / "bad.txt"),
    ):
        pass


@pytest.mark.live
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"config": {"global": {"nonsense": 1}}}, "field nonsense not found"),
        ({"flags": ["--nonsense"]}, "unknown long flag '--nonsense'"),
    ],
)
def test_what_prometheus_refuses_is_told_in_its_own_words(
    options: dict[str, Any], words: str, prometheus_binary: Path
) -> None:
    """A broken configuration ends the start at once, with the complaint of Prometheus."""
    begun = time.monotonic()
    with pytest.raises(ProvisioningError, match=rf"Prometheus must start \(got exit code [12]\)(.|\n)*{words}"):
        Prometheus(prometheus_binary, **options).__enter__()
    assert time.monotonic() - begun < prometheus.READY_S / 2


@pytest.mark.live
def test_a_reload_takes_changed_rules(prometheus_binary: Path, start_prometheus: Start, tmp_path: Path) -> None:
    """A rule file that was rewritten is in force after a reload."""
    file = rules(tmp_path / "r.yaml", "vector(1)")
    server = start_prometheus(prometheus_binary, rule_files=[file])
    rules(file, "vector(5)")
    server.reload()
    assert wait_for(lambda: [r for r in query(server, "told") if r["value"][1] == "5"])


@pytest.mark.live
def test_a_reload_of_broken_rules_is_told_and_survived(
    prometheus_binary: Path, start_prometheus: Start, tmp_path: Path
) -> None:
    """Broken rules are refused in Prometheus's words, and the old ones stay in force."""
    file = rules(tmp_path / "r.yaml", "vector(1)")
    server = start_prometheus(prometheus_binary, rule_files=[file])
    rules(file, "vector(")
    with pytest.raises(ProvisioningError, match=r"must take the changed files(.|\n)*could not parse expression"):
        server.reload()
    assert wait_for(lambda: query(server, "told"))[0]["value"][1] == "1"


@pytest.mark.live
def test_nothing_is_left_after_the_block(prometheus_binary: Path) -> None:
    """Process and data are gone when the block ends, by an exception too."""
    server = Prometheus(prometheus_binary)
    seen = []

    def work() -> None:
        with server:
            folder = (
                Path(f"/proc/{server.pid}/cmdline").read_text().split("--config.file=")[1].split("/prometheus.yml")[0]
            )
            seen.append((server.pid, Path(folder), alive(server.pid), Path(folder).is_dir()))
            raise KeyError

    with pytest.raises(KeyError):
        work()
    ((pid, folder, ran, had_data),) = seen
    assert ran
    assert had_data
    assert not alive(pid)
    assert not folder.exists()


@pytest.mark.live
def test_two_at_once_do_not_meet(prometheus2: Path, prometheus3: Path, start_prometheus: Start) -> None:
    """Two servers have ports and data of their own."""
    first, second = start_prometheus(prometheus2), start_prometheus(prometheus3)
    assert first.url != second.url
    versions = [query_version(server) for server in (first, second)]
    assert [version.split(".")[0] for version in versions] == ["2", "3"]


def query_version(server: Prometheus) -> str:
    """Version that a server says it is."""
    with urllib.request.urlopen(f"{server.url}/api/v1/status/buildinfo", timeout=10) as answer:
        return str(json.load(answer)["data"]["version"])


@pytest.mark.live
def test_a_port_that_was_taken_meanwhile_is_given_up(prometheus_binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may take the free port first: the next one is tried."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        free = prometheus.free_port()
        ports = iter([other.getsockname()[1], free])
        monkeypatch.setattr(prometheus, "free_port", lambda: next(ports))
        with Prometheus(prometheus_binary) as server:
            assert server.url == f"http://127.0.0.1:{free}"


@pytest.mark.live
def test_another_prometheus_on_the_port_is_not_taken_for_ours(
    prometheus_binary: Path, start_prometheus: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ready answer counts only if it comes from our own data."""
    other = start_prometheus(prometheus_binary)
    free = prometheus.free_port()
    ports = iter([int(other.url.rsplit(":", 1)[1]), free])
    monkeypatch.setattr(prometheus, "free_port", lambda: next(ports))
    with Prometheus(prometheus_binary) as server:
        assert server.url == f"http://127.0.0.1:{free}"


@pytest.mark.live
def test_a_server_killed_from_outside_is_reported(prometheus_binary: Path) -> None:
    """Whoever asks for the address, and the end of the block, learn that the server died and how."""
    server = Prometheus(prometheus_binary)
    told = r"must run until it is stopped \(got exit code -9\)"
    server.__enter__()
    os.kill(server.pid, signal.SIGKILL)
    assert wait_for(lambda: not serves(server))
    with pytest.raises(ProvisioningError, match=told):
        _ = server.url
    with pytest.raises(ProvisioningError, match=told):
        server.__exit__(None, None, None)
    with pytest.raises(ProvisioningError, match="must be running"):
        _ = server.url


def serves(server: Prometheus) -> bool:
    """Whether the address is given out."""
    try:
        return bool(server.url)
    except ProvisioningError:
        return False


@pytest.mark.live
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT])
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_no_server_outlives_its_parent(how: signal.Signals, prometheus_binary: Path) -> None:
    """However the process that started it ends, the server ends with it."""
    code = (
        "import sys, time; from pathlib import Path; from provisioning.stack.prometheus import Prometheus\n"
        "with Prometheus(Path(sys.argv[1])) as server: print(server.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(prometheus_binary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(how)
    assert wait_for(lambda: not alive(pid))


@pytest.mark.live
def test_promtool_tells_what_it_prints(promtool_binary: Path, tmp_path: Path) -> None:
    """A rules test that passes returns promtool's words; one that fails raises them."""
    rules(tmp_path / "r.yaml", "vector(1)")
    test = {
        "rule_files": ["r.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {"promql_expr_test": [{"expr": "told", "eval_time": "1m", "exp_samples": [{"labels": "told", "value": 1}]}]}
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(test))
    assert "SUCCESS" in promtool("test", "rules", str(file), binary=promtool_binary)
    rules(tmp_path / "r.yaml", "vector(2)")
    with pytest.raises(ProvisioningError, match=r"must pass \(got exit code 1\)(.|\n)*FAILED"):
        promtool("test", "rules", str(file), binary=promtool_binary)
