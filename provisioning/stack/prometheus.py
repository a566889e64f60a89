"""A Prometheus on loopback, for as long as a block of code runs, and promtool beside it."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from provisioning.errors import ProvisioningError
from provisioning.stack import tools

READY_S = 60.0
"""A start takes under a second; loading hours of history on a busy machine takes some."""
STOP_S = 10.0
"""Prometheus needs well under a second to write its head; after this it is killed."""
PORT_TRIES = 5
ANSWER_S = 2.0
"""For one question while it starts: whoever took the port first may never answer."""
POLL_S = 0.05

_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback never goes through a proxy


class Prometheus:
    """A server with data of its own, that runs from `with` to the end of its block.

    The configuration scrapes `targets` (each `host:port`) as job `training` and evaluates `rule_files`. `config` adds
    to it: `global` key by key, `scrape_configs` and `rule_files` at their end, any other section as it is. `blocks` is
    a file of OpenMetrics text (its last line `# EOF`), loaded as history before the start. `binary` is
    `tools.find("prometheus")` unless named.

    Start it from a thread that outlives it: on Linux it ends with that thread, so that it never survives its parent.

    Raises: ValueError for a rule file that is not there (Prometheus would pass over it); ProvisioningError, with what
    Prometheus said, if it does not start, does not take a reload, or ends by itself.
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        targets: Sequence[str] = (),
        rule_files: Sequence[Path] = (),
        scrape_interval: str = "1s",
        evaluation_interval: str = "1s",
        config: Mapping[str, Any] | None = None,
        flags: Sequence[str] = (),
        blocks: Path | None = None,
    ) -> None:
        if missing := [str(file) for file in rule_files if not Path(file).is_file()]:
            raise ValueError(
                f"stack.prometheus: rule_files must be files (got {', '.join(missing)}). Render them first."
            )
        more = dict(config or {})
        scrape = [{"job_name": "training", "static_configs": [{"targets": list(targets)}]}] if targets else []
        self._config = {
            **more,
            "global": {
                "scrape_interval": scrape_interval,
                "evaluation_interval": evaluation_interval,
                **more.get("global", {}),
            },
            "scrape_configs": [*scrape, *more.get("scrape_configs", ())],
            "rule_files": [*(str(Path(file).absolute()) for file in rule_files), *more.get("rule_files", ())],
        }
        self._binary = binary
        self._flags = tuple(flags)
        self._blocks = blocks
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._url = ""

    def __enter__(self) -> Prometheus:
        if self._process is not None:
            raise ValueError("stack.prometheus: a server is started once. Make another one.")
        binary = self._binary or tools.find("prometheus")
        folder = self._folder = Path(tempfile.mkdtemp(prefix="megatron-watch-prometheus-"))
        atexit.register(self.stop)
        try:
            (folder / "prometheus.yml").write_text(yaml.safe_dump(self._config))
            if self._blocks is not None:
                tool = binary.with_name("promtool")
                source = ("tsdb", "create-blocks-from", "openmetrics", str(self._blocks), str(folder / "data"))
                promtool(*source, binary=tool if tool.is_file() else None)
            self._start(binary, folder)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._process is not None:
                self._check_running()
        finally:
            self.stop()

    @property
    def url(self) -> str:
        """Address of the server, without a slash at its end.

        Raises: ProvisioningError if the server is not running.
        """
        self._check_running()
        return self._url

    @property
    def pid(self) -> int:
        """Process id of the server.

        Raises: ProvisioningError if the server is not running.
        """
        return self._check_running().pid

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self._folder / "log").read_text(errors="replace") if self._folder else ""

    def reload(self) -> None:
        """Read the rule files and the configuration again.

        Raises: ProvisioningError, with what Prometheus said, if it refuses them; it then goes on with the old ones.
        """
        before = len(self.log)
        try:
            _http.open(f"{self.url}/-/reload", data=b"", timeout=READY_S).close()
        except urllib.error.HTTPError as error:
            with error:
                answer = error.read().decode(errors="replace").strip()
            raise ProvisioningError(
                f"stack.prometheus: Prometheus must take the changed files (got {answer!r}). Correct them."
                + _complaints(self.log[before:])
            ) from error

    def stop(self) -> None:
        """End the server and remove its data. A second call does nothing."""
        process, folder = self._process, self._folder
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._process = self._folder = None
        atexit.unregister(self.stop)

    def _start(self, binary: Path, folder: Path) -> None:
        for _ in range(PORT_TRIES):
            port = free_port()
            self._url = f"http://127.0.0.1:{port}"
            command = (
                *(str(binary), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"),
                *("--storage.tsdb.retention.time=10y", "--web.enable-lifecycle"),  # history may be of any age
                "--scrape.discovery-reload-interval=100ms",  # else up to 10 s pass before a scrape, not 5
                *(f"--web.listen-address=127.0.0.1:{port}", f"--web.external-url={self._url}/"),
                *self._flags,
            )
            with (folder / "log").open("wb") as log:
                try:
                    self._process = subprocess.Popen(
                        (*_end_with_parent(), *command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
                except OSError as error:
                    raise ProvisioningError(
                        f"stack.prometheus: {binary} must be a program of this system (got {error}). Name another."
                    ) from error
            if self._ready(str(folder / "data")):
                return
            if "address already in use" not in self.log:
                break
        raise ProvisioningError(
            f"stack.prometheus: Prometheus must start (got exit code {self._process and self._process.returncode}). "
            "Correct what it complains about." + _complaints(self.log)
        )

    def _ready(self, data: str) -> bool:
        """Whether the server came up; False if it ended. The data folder proves that no other server answers."""
        assert self._process is not None
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                return False
            try:
                _http.open(f"{self._url}/-/ready", timeout=ANSWER_S).close()
                with _http.open(f"{self._url}/api/v1/status/flags", timeout=ANSWER_S) as answer:
                    if json.load(answer)["data"]["storage.tsdb.path"] == data:
                        return True
            except (OSError, ValueError, KeyError):
                pass  # not yet listening, not yet ready, or another server
            time.sleep(POLL_S)
        raise ProvisioningError(
            f"stack.prometheus: Prometheus must be ready within {READY_S:g} s (got no answer at {self._url}). "
            "Try again on a less busy machine." + _complaints(self.log)
        )

    def _check_running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ProvisioningError("stack.prometheus: Prometheus must be running (got none). Start it by `with`.")
        code = self._process.poll()
        if code is not None:
            raise ProvisioningError(
                f"stack.prometheus: Prometheus must run until it is stopped (got exit code {code}). "
                "Find out who or what ended it." + _complaints(self.log)
            )
        return self._process


def promtool(*arguments: str, binary: Path | None = None) -> str:
    """Run promtool and return what it printed: `promtool("test", "rules", "tests/promtool/loss.yaml")`.

    Raises: ProvisioningError, with what it printed, unless it exits with 0.
    """
    program = binary or tools.find("promtool")
    done = subprocess.run(
        (str(program), *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ProvisioningError(
            f"stack.prometheus: promtool {' '.join(arguments)} must pass (got exit code {done.returncode}). "
            f"Correct what it complains about.\n{done.stdout.rstrip()}"
        )
    return done.stdout


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_with_parent() -> tuple[str, ...]:
    """Prefix of a command that the kernel ends when its parent dies, where the system has such a thing."""
    setpriv = shutil.which("setpriv")
    return (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()


def _complaints(log: str) -> str:
    """The last errors of a log, or its last lines if it names none, each on a line of its own."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "level=error" in line.lower()]
    return "".join(f"\n  {line}" for line in (errors or lines)[-5:])
