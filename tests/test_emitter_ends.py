"""How a process may end, and what is left of its run: real processes, scraped as Prometheus scrapes them."""

from __future__ import annotations

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest
from collectors import Received, over_http
from programs import CODES, ENDS, SUDDEN, finish, program

ROOT = Path(__file__).resolve().parent.parent


class Scraper:
    """Scrapes a port over and over, as Prometheus does, until nobody answers."""

    def __init__(self, port: int, every_s: float = 0.2) -> None:
        self.answers: list[str] = []
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._every_s = every_s
        self._done = Event()
        self._thread = Thread(target=self._scrape)

    def _scrape(self) -> None:
        while not self._done.wait(self._every_s):
            try:
                with urllib.request.urlopen(self._url, timeout=5) as answer:
                    self.answers.append(answer.read().decode())
            except (urllib.error.URLError, ConnectionError):
                continue

    def __enter__(self) -> Scraper:
        self._thread.start()
        while not self.answers:
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def phases(text: str) -> list[str]:
    """The phases that are 1 in a scrape."""
    lines = [line for line in text.splitlines() if line.startswith("megatron_run_phase{") and line.endswith(" 1.0")]
    return [line.partition('phase="')[2].partition('"')[0] for line in lines]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a program's end looked like from outside."""

    before: list[str]
    """The phases that were 1 when it was told to end."""
    last: list[str]
    """Those of its last scrape, or push."""
    code: int
    said: str


def scraped(name: str, end: str) -> Seen:
    """A program that is scraped, to its end."""
    with program(end, "scrape:0", run=name) as (process, port), Scraper(port) as scraper:
        before = phases(scraper.answers[-1])
        code, said = finish(process)
    return Seen(before=before, last=phases(scraper.answers[-1]), code=code, said=said)


def pushed(name: str, end: str) -> Seen:
    """A program that pushes, to its end."""
    with over_http() as collector, program(end, collector.to, run=name) as (process, _):
        code, said = finish(process)
    return Seen(before=[], last=list(last_phases(collector)), code=code, said=said)


@pytest.fixture(scope="module", params=[scraped, pushed], ids=["scraped", "pushed"])
def ends(request: pytest.FixtureRequest) -> dict[str, Seen]:
    """Every way to end, all at once: programs wait for each other's imports, not for each other's ends."""
    every = {**ENDS, **SUDDEN}
    with ThreadPoolExecutor(len(every)) as pool:
        return dict(zip(every, pool.map(request.param, every, every.values()), strict=True))


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_can_be_said_arrives(end: str, ends: dict[str, Seen]) -> None:
    """Scraped, the process waits for one more scrape; pushing, it does not wait for the interval."""
    assert ends[end].last == ["ended"]


@pytest.mark.parametrize("end", SUDDEN)
def test_a_sudden_end_says_nothing(end: str, ends: dict[str, Seen]) -> None:
    """Nobody can say anything then: that is what TrainingVanished is for."""
    assert "ended" not in ends[end].last


@pytest.mark.parametrize("end", [*ENDS, *SUDDEN])
def test_a_process_ends_as_it_would_have(end: str, ends: dict[str, Seen]) -> None:
    """The exit code and the last words are the program's own."""
    seen = ends[end]
    assert seen.before in (["train"], [])
    assert seen.code == CODES.get(end, 0)
    assert ("out of luck" in seen.said) == (end == "an exception")
    assert seen.said.count("Traceback") == (end in ("an exception", "an interrupt"))


def test_nobody_waits_where_nobody_scrapes() -> None:
    """A program whose port nobody asks ends at once."""
    with program("", "scrape:0") as (process, _):
        begin = time.monotonic()
        finish(process)
    assert time.monotonic() - begin < 10


def test_a_second_signal_does_not_wait() -> None:
    """Who cannot wait for the last scrape asks again."""
    with program("time.sleep(60)", "scrape:0") as (process, port):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < 15:  # two at once count as one
            process.terminate()
            time.sleep(1)
        assert process.poll() == -signal.SIGTERM


def test_a_data_loader_that_is_terminated_does_not_end_the_run() -> None:
    """A forked child has the handler, too, and dies of the signal as it would without."""
    fork = (
        "ready, there = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0: os.write(there, b'x'); time.sleep(30); os._exit(9)\n"
        "os.read(ready, 1)\n"
        "os.kill(child, signal.SIGTERM)\n"
        "_, status = os.waitpid(child, 0)\n"
        "sys.exit(os.waitstatus_to_exitcode(status))\n"
    )
    with program(fork, "scrape:0") as (process, port), Scraper(port) as scraper:
        code, _ = finish(process)
    assert code == 256 - signal.SIGTERM  # died of it
    assert phases(scraper.answers[-1]) == ["ended"]


def last_phases(collector: Received) -> Sequence[str]:
    """The phases that are 1 in the last request that has any."""
    found: list[str] = []
    for request in collector.requests:
        metrics = [m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics]
        points = [p for m in metrics if m.name == "megatron.run.phase" for p in m.gauge.data_points]
        now = [a.value.string_value for p in points if p.as_double == 1 for a in p.attributes if a.key == "phase"]
        found = now or found
    return found
