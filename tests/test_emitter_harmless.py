"""Nothing hurts training: whatever happens on the way out, the loop goes on, at its speed, with a readable log."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collectors import REACHED, SICK, over_grpc, over_http
from prometheus_client.parser import text_string_to_metric_families

import emitter
from emitter import catalog
from emitter.export import Export, start
from emitter.instruments import before_collection
from emitter.repeats import Repeats
from emitter.stores import QUEUE_LIMIT

ROOT = Path(__file__).resolve().parent.parent
VALUES = (1500.0, 2.5, 410.0, 0.75, 0, 3e-4, 1.0e6, 61.0)
NEVER_S = 3600.0
WAIT_S = 4.0
"""More than the scheduler of a busy machine takes away, and less than half of what a network wait would take."""


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches the SDK."""
    for name in os.environ:
        if name.startswith(("OTEL_", "SLURM_")) or name == "RANK":
            monkeypatch.delenv(name)


class Unreadable:
    """A tensor whose device is gone."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error: device-side assert triggered")


def train(export: Export, steps: int) -> float:
    """A loop that records at each step; the time of its slowest recording."""
    slowest = 0.0
    for _ in range(steps):
        begun = time.perf_counter()
        emitter.record_training_metrics(export.meter, *VALUES)
        slowest = max(slowest, time.perf_counter() - begun)
    return slowest


def samples(export: Export) -> dict[tuple[str, str], float]:
    """What a scrape shows, by name and signal or span."""
    host, port = export.addresses[0]
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (sample.name, sample.labels.get("signal") or sample.labels.get("span", "")): sample.value
        for family in families
        for sample in family.samples
    }


def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, before formatting: the numbers in it differ each time."""
    return [str(record.msg) for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("name", SICK)
def test_a_sick_collector_hurts_nobody(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """However a collector fails, no recording waits for it, the end takes its time and no more, the log stays short."""
    with SICK[name]() as collector:
        export = start("run-7", [collector.to], interval_s=0.3)
        assert train(export, 5000) < WAIT_S
        if name in REACHED:
            until(lambda: collector.requests)
        assert not export.flush(0.2)
        begun = time.monotonic()
        export.shutdown(1.0)
        assert time.monotonic() - begun < 1.0 + WAIT_S
        assert train(export, 10) < WAIT_S
    said = [str(record.msg) for record in caplog.records]
    assert len(said) == len(set(said)) <= 4, said


@pytest.mark.parametrize("name", ["http 400", "grpc invalid"])  # what no SDK tries again
def test_a_failure_that_repeats_is_one_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A collector that rejects every export costs the same lines as one that rejects the first."""
    with SICK[name]() as collector, start("run-7", [collector.to], interval_s=NEVER_S) as export:
        for _ in range(20):
            train(export, 10)
            assert not export.flush(30.0)
        assert len(collector.requests) >= 20
    said = messages(caplog)
    assert len(said) == len(set(said)) <= 2, said


def test_what_hangs_past_the_end_does_not_repeat_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A shutdown does not wait for an export that hangs; its last complaint is not news."""
    log = logging.getLogger("hanging")
    repeats = Repeats([log.name])
    with repeats.left_out():
        log.warning("down")
        repeats.close()
        log.warning("down")
    assert messages(caplog) == ["down"]
    assert log.filters == []


@pytest.mark.parametrize("collector_over", [over_http, over_grpc])
def test_a_slow_collector_gets_everything(collector_over: Callable[..., Any]) -> None:
    """A second for an answer costs the loop nothing, and no value."""
    with collector_over(delay_s=1.0) as collector:
        times: list[float] = []
        with start("run-7", [collector.to], interval_s=0.2) as export:

            def three_arrived() -> bool:
                times.append(train(export, 1))
                return len(collector.requests) >= 3

            until(three_arrived)
        assert max(times) < 1.0
        assert collector.values(catalog.STEP_DURATION.name)[-1] == len(times)


@pytest.mark.parametrize("collector_over", [over_http, over_grpc])
def test_a_collector_may_go_and_come_back(collector_over: Callable[..., Any]) -> None:
    """What was recorded during an outage arrives after it, without anybody's doing."""
    with collector_over() as before:
        export = start("run-7", [before.to], interval_s=NEVER_S)
        train(export, 10)
        assert export.flush()
    port = int(before.to.rpartition(":")[2])
    assert train(export, 10) < WAIT_S
    assert not export.flush(0.2)
    with collector_over(port=port) as after:
        train(export, 10)
        until(lambda: export.flush(5.0), seconds=30)
        export.shutdown()
        assert after.values(catalog.STEP_DURATION.name)[-1] == 30
    assert before.values(catalog.STEP_DURATION.name) == [10]


@pytest.mark.parametrize("name", ["http refusing", "http hanging", "grpc refusing", "grpc hanging"])
def test_an_outage_takes_neither_time_nor_memory(name: str) -> None:
    """Of 100,000 recordings during an outage not one takes as long as a connection would, and nothing piles up."""
    with SICK[name]() as collector, start("run-7", [collector.to], interval_s=0.1) as export:
        if name in REACHED:
            until(lambda: collector.requests)
        train(export, 2 * QUEUE_LIMIT)  # the queue is full, from here on as much leaves it as comes
        gc.collect()
        before = sys.getallocatedblocks()
        assert train(export, 100_000) < WAIT_S
        gc.collect()
        assert sys.getallocatedblocks() - before < 2 * QUEUE_LIMIT  # a queue without a limit keeps 100,000 more
        export.shutdown(0.1)


def test_no_value_raises(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a loop passes for a number, nothing is raised, the rest of the call arrives, each kind is one line."""
    strange: list[Any] = [Unreadable(), 10**400, 1j, "loss", b"", [], object(), float("nan"), float("-inf")]
    with start("run-7", ["scrape:0"]) as export:
        for _ in range(100):
            for value in strange:
                emitter.record_training_metrics(export.meter, value, value, value, value, value, value, value, 61.0)
        found = samples(export)
    assert found["megatron_training_memory_allocated_gb", ""] == 61.0
    assert found["megatron_training_nonfinite_total", "loss"] == 200
    said = [record.getMessage().partition(" (got")[0] for record in caplog.records]
    assert sorted(said) == sorted(set(said))


def test_64_threads_lose_nothing() -> None:
    """Totals of counters and histograms are exact, on every way out, with collections in between."""
    threads, steps = 64, 500
    with over_http() as collector, start("run-7", ["scrape:0", collector.to], interval_s=0.05) as export:
        begin = threading.Barrier(threads + 1)

        def work() -> None:
            begin.wait()
            for _ in range(steps):
                emitter.record_training_metrics(export.meter, step_duration_ms=10.0, loss=float("nan"), skipped_iters=1)
                emitter.record(export.meter, catalog.SPAN_DURATION, 2.0, {"span": "s", "group": "g"})

        working = [threading.Thread(target=work) for _ in range(threads)]
        for thread in working:
            thread.start()
        begin.wait()
        while any(thread.is_alive() for thread in working):
            samples(export)
        for thread in working:
            thread.join()
        found = samples(export)
        assert export.flush()
    total = threads * steps
    assert found["megatron_training_skipped_iters_total", ""] == total
    assert found["megatron_training_nonfinite_total", "loss"] == total
    assert found["megatron_training_step_duration_ms_milliseconds_count", ""] == total
    assert found["megatron_training_step_duration_ms_milliseconds_sum", ""] == 10.0 * total
    assert found["megatron_span_duration_seconds_count", "s"] == total
    assert collector.values(catalog.STEP_DURATION.name)[-1] == total
    assert collector.values(catalog.SKIPPED_ITERS.name)[-1] == total


def boom(*_: object) -> Any:
    raise RuntimeError("theirs")


def test_a_raising_hook_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails before each collection costs its own values and one line."""
    with start("run-7", ["scrape:0"]) as export:
        before_collection(export.meter, boom)
        train(export, 1)
        for _ in range(10):
            assert samples(export)["megatron_training_loss", ""] == 2.5
    assert len(messages(caplog)) == 1


def test_a_raising_callback_costs_its_own_instrument_alone() -> None:
    """Another instrument on our meter may fail at each collection: ours arrive, by every way."""
    with over_http() as collector, start("run-7", ["scrape:0", collector.to], interval_s=NEVER_S) as export:
        export.meter.create_observable_gauge("theirs", [boom])
        train(export, 1)
        assert samples(export)["megatron_training_loss", ""] == 2.5
        assert export.flush()
        assert collector.values(catalog.LOSS.name)[-1] == 2.5


def script(code: str, to: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """A training script of its own, which has begun with a run `export` and its `meter`."""
    begin = (
        "import os, socket, sys, time, warnings, emitter\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # of 3.12: a fork with threads\n"
        f"export = emitter.start('run-7', [{to!r}], interval_s=0.2)\n"
        "meter = export.meter\n"
    )
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        cwd=ROOT,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},  # it tells of a fork, now and then
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_does_not_end_training() -> None:
    """Standard output on a full disk: one line, and the script ends as it would have."""
    with open("/dev/full", "w") as full:
        done = script(
            "for step in range(100):\n"
            "    emitter.record_training_metrics(meter, loss=2.5)\n"
            "    export.flush()\n"
            "print('trained', file=sys.stderr)\n",
            "console",
            stdout=full,
        )
    assert done.returncode == 0
    complaint, end = done.stderr.splitlines()
    assert complaint.startswith("console: must take the metrics (got OSError(28, 'No space left on device')).")
    assert end == "trained"


FORK = """
emitter.record_training_metrics(meter, loss=2.5, skipped_iters=0)
export.flush()
here, there = os.pipe()
child = os.fork()
if child == 0:
    for _ in range(1000):
        emitter.record_training_metrics(meter, loss=-7.0, skipped_iters=1)
    export.flush(0.1)
    os.write(there, str(time.monotonic()).encode())
    sys.exit(0)
begun = float(os.read(here, 100))
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert time.monotonic() - begun < 2.9, "the child's end took long"
emitter.record_training_metrics(meter, loss=3.5)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("collector_over", [over_http, over_grpc])
def test_a_forked_child_ends_in_silence(collector_over: Callable[..., Any]) -> None:
    """A child that records, flushes and exits like any program reports nothing; its parent goes on."""
    with collector_over() as collector:
        done = script(FORK, collector.to)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(collector.values(catalog.LOSS.name)) == {2.5, 3.5}
        assert set(collector.values(catalog.SKIPPED_ITERS.name)) == {0}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_keep_the_port() -> None:
    """A data loader that outlives the run leaves the scrape port free; the run is scraped while it lives."""
    done = script(
        "import urllib.request\n"
        "wait, go = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(go)\n"
        "    os.read(wait, 1)\n"
        "    os._exit(0)\n"
        "host, port = export.addresses[0]\n"
        "emitter.record_training_metrics(meter, loss=2.5)\n"
        "with urllib.request.urlopen(f'http://{host}:{port}/metrics', timeout=5) as answer:\n"
        "    assert b'\\nmegatron_training_loss{' in answer.read()\n"
        "export.shutdown()\n"
        "with emitter.start('run-8', [f'scrape:{port}']):\n"
        "    pass\n"
        "os.close(go)\n"
        "os.waitpid(child, 0)\n",
        "scrape:0",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_collection_ends_however_fast_the_loop_records() -> None:
    """A loop that records faster than the SDK takes values in does not hold up who collects."""
    with start("run-7", ["scrape:0"]) as export:
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                emitter.record_training_metrics(export.meter, step_duration_ms=10.0)

        working = threading.Thread(target=work)
        working.start()
        try:
            assert samples(export)["megatron_training_step_duration_ms_milliseconds_count", ""] > 0
        finally:
            over.set()
            working.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    """A lock that another thread held at the fork does not hang the child's recording."""
    done = script(
        "import signal, threading\n"
        "over = threading.Event()\n"
        "def work():\n"
        "    while not over.is_set():\n"
        "        emitter.record_training_metrics(meter, loss=float('nan'), skipped_iters=1)\n"
        "working = threading.Thread(target=work)\n"
        "working.start()\n"
        "ends = []\n"
        "for _ in range(30):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        signal.alarm(5)\n"
        "        emitter.record_training_metrics(meter, loss=float('nan'), skipped_iters=1)\n"
        "        os._exit(0)\n"
        "    ends.append(os.waitpid(child, 0)[1])\n"
        "over.set()\n"
        "working.join()\n"
        "assert not any(ends), ends\n",
        "scrape:0",
    )
    assert (done.returncode, done.stderr) == (0, "")
