"""The loop object: what a step, an evaluation, a checkpoint and an end leave behind, read as a scraper reads it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from collectors import over_http
from prometheus_client.parser import text_string_to_metric_families

from emitter import TrainingRun, catalog, managed_span, record_training_metrics, set_up, setup, spans
from emitter.repeats import Once
from emitter.setup import Telemetry

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting of the machine reaches a run, and no run's signal handler or spans the next test."""
    for name in os.environ:
        if name.startswith(("OTEL_", "MEGATRON_OTEL_", "NEMO_LENS_", "SLURM_", "TORCHELASTIC_")) or name == "RANK":
            monkeypatch.delenv(name)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL
    assert not spans.is_span_group_enabled("job")


def scraped(of: TrainingRun | Telemetry) -> dict[str, float]:
    """Every sample as `name` or `name{a="b",…}`, without the run id and what an exporter adds."""
    host, port = (of.telemetry if isinstance(of, TrainingRun) else of).addresses[0]
    text = urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10).read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("nemo_run_id", "otel_scope_name")}
            inside = ",".join(f"{k}={v}" for k, v in sorted(labels.items()) if v and not k.startswith("otel_scope"))
            found[sample.name.removeprefix("megatron_") + (f"{{{inside}}}" if inside else "")] = sample.value
    return found


def test_a_step_reports_everything_it_is_told() -> None:
    """Values, counters and the speed of a step; the number of the step is a value too."""
    with TrainingRun("r", to="scrape:0", target_iteration=900, world_size=64, linger_s=0) as run:
        run.step(loss=3.0, tokens=1000, seconds=2.0)
        run.step(loss=2.5, tokens=1000, samples=8, grad_norm=0.5, learning_rate=1e-4, skipped=True, seconds=2.0)
        there = scraped(run)
    assert there["training_loss"] == 2.5
    assert there["training_tokens_per_sec"] == 500
    assert there["training_consumed_tokens"] == 2000
    assert there["training_global_batch_size"] == there["training_consumed_samples"] == 8
    assert (there["training_grad_norm"], there["training_learning_rate"]) == (0.5, 1e-4)
    assert there["training_skipped_iters_total"] == 1
    assert (there["training_iteration"], there["training_target_iteration"]) == (2, 900)
    assert there["run_world_size"] == 64
    assert there["training_step_duration_ms_milliseconds_count"] == 2
    assert there["training_step_duration_ms_milliseconds_sum"] == 4000
    assert there["run_phase{phase=train}"] == 1


def test_with_an_interval_only_each_nth_loss_is_read() -> None:
    """On a GPU reading a loss waits for the step: between two reports nothing is read, and everything is counted."""
    read = []

    class Loss:
        def __init__(self, step: int) -> None:
            self.step = step

        def __float__(self) -> float:
            read.append(self.step)
            return 1.0

    with TrainingRun("r", to="scrape:0", log_every=4, linger_s=0) as run:
        for step in range(1, 10):
            run.step(loss=Loss(step), tokens=100, skipped=step in (3, 4), seconds=1.0)
        there = scraped(run)
    assert read == [1, 5, 9]  # the first step is reported at once
    assert there["training_skipped_iters_total"] == 2
    assert there["training_tokens_per_sec"] == 100
    assert there["training_consumed_tokens"] == 900
    assert there["training_iteration"] == 9


def test_what_cannot_be_read_does_not_stop_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """A tensor on a broken device raises whatever is asked of it: one line of the log, and the rest is reported."""

    class Broken:
        def __radd__(self, other: object) -> Broken:
            raise RuntimeError("device-side assert triggered")

        def __float__(self) -> float:
            raise RuntimeError("device-side assert triggered")

    with TrainingRun("r", to="scrape:0", linger_s=0) as run:
        for _ in range(20):
            run.step(loss=Broken(), tokens=Broken(), grad_norm=0.5)  # type: ignore[arg-type]
        there = scraped(run)
    assert there["training_grad_norm"] == 0.5
    assert run.iteration == 20
    assert len([line for line in caplog.messages if "cannot count" in line]) == 1
    assert len([line for line in caplog.messages if "training.loss" in line]) == 1


def test_tokens_may_be_a_tensor_that_is_read_with_the_report() -> None:
    """Adding to a tensor does not wait for the device; only the sum is read."""
    reads = []

    class Tensor:
        def __init__(self, value: float) -> None:
            self.value = value

        def __radd__(self, other: float) -> Tensor:
            return Tensor(other + self.value)

        def __add__(self, other: Tensor) -> Tensor:
            return Tensor(self.value + other.value)

        def __float__(self) -> float:
            reads.append(self.value)
            return self.value

    with TrainingRun("r", to="scrape:0", log_every=3, linger_s=0) as run:
        for _ in range(4):
            run.step(tokens=Tensor(10.0), seconds=2.0)
        there = scraped(run)
    assert reads == [10.0, 30.0]
    assert there["training_consumed_tokens"] == 40
    assert there["training_tokens_per_sec"] == 5


@pytest.mark.parametrize(
    "wrong", [{"seconds": "slow"}, {"seconds": float("nan")}, {"iteration": "abc"}, {"tokens": "4k"}]
)
def test_one_wrong_argument_costs_one_step(wrong: dict[str, object]) -> None:
    """What cannot be is told once; every other step counts as ever."""
    with TrainingRun("r", to="scrape:0", linger_s=0) as run:
        run.step(tokens=10, seconds=1.0)
        run.step(**wrong)  # type: ignore[arg-type]
        for _ in range(5):
            run.step(tokens=10, seconds=1.0)
        there = scraped(run)
    assert there["training_iteration"] == run.iteration == 7
    assert there["training_consumed_tokens"] == 60
    assert there["training_step_duration_ms_milliseconds_count"] == 7
    assert there["run_time_seconds_total{bucket=productive}"] > 0


def test_the_last_steps_count(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that wait for the rest of their interval are reported before a checkpoint, and at the end."""
    monkeypatch.setenv("MEGATRON_OTEL_TRACES_ENABLED", "0")
    with TrainingRun("r", to=["scrape:0", "console"], log_every=10, linger_s=0, interval_s=3600) as run:
        for _ in range(15):
            run.step(tokens=10, skipped=run.iteration == 14, seconds=1.0)
        with run.checkpoint():
            there = scraped(run)
        for _ in range(3):
            run.step(tokens=10, seconds=1.0)
    assert (there["training_iteration"], there["training_consumed_tokens"]) == (15, 150)
    assert there["training_skipped_iters_total"] == 1
    last = json.loads(
        capfd.readouterr().out.rpartition('{\n    "resource_metrics"')[2].join(['{"resource_metrics"', ""])
    )
    metrics = {m["name"]: m for m in last["resource_metrics"][0]["scope_metrics"][0]["metrics"]}
    assert metrics[catalog.ITERATION.name]["data"]["data_points"][0]["value"] == 18
    assert metrics[catalog.CONSUMED_TOKENS.name]["data"]["data_points"][0]["value"] == 180


def test_the_end_is_pushed_before_a_scrape_is_waited_for() -> None:
    """Who kills the process while it waits for a scraper does not keep its end from the collector."""
    with over_http() as collector:
        run = TrainingRun("r", to=["scrape:0", collector.to], interval_s=3600, linger_s=20)
        scraped(run)
        ending = Thread(target=run.end)
        ending.start()
        ending.join(3)
        ended = [1.0 in collector.values(catalog.RUN_PHASE.name)]
        waiting = ending.is_alive()
        scraped(run)
        ending.join(20)
        run.leave_sigterm()
    assert ended == [True]
    assert waiting


def test_sigterm_ends_every_run_of_a_process() -> None:
    """One handler, however many runs; it goes with the last of them."""
    first = TrainingRun("a", to="scrape:0", linger_s=0)
    with TrainingRun("b", to="scrape:0", linger_s=0):
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        first.end()
        assert signal.getsignal(signal.SIGTERM) is handler
        assert spans.is_span_group_enabled("job")  # the second run's
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_evaluation_and_a_checkpoint_are_phases_with_results() -> None:
    """Each is a phase while it lasts, and a duration afterwards."""
    with TrainingRun("r", to="scrape:0", linger_s=0) as run:
        run.step(loss=3.0)
        with run.evaluation() as evaluation:
            assert scraped(run)["run_phase{phase=evaluate}"] == 1
            evaluation.loss = 2.75
        with run.checkpoint():
            assert scraped(run)["run_phase{phase=checkpoint}"] == 1
        there = scraped(run)
    assert there["training_validation_loss"] == 2.75
    assert there["evaluation_duration_seconds_count"] == 1
    assert there["checkpoint_save_duration_seconds_count"] == 1
    assert there["checkpoint_last_iteration"] == 1
    assert there["run_phase{phase=train}"] == 1
    assert there["span_duration_seconds_count{group=evaluate,span=megatron.evaluate}"] == 1
    assert there["span_duration_seconds_count{group=checkpoint,span=megatron.save_checkpoint}"] == 1


def test_a_checkpoint_that_fails_is_counted_and_raises() -> None:
    """The loop sees its own error; nothing says that work is safe."""
    with TrainingRun("r", to="scrape:0", linger_s=0) as run:
        run.step(loss=3.0)
        with pytest.raises(OSError, match="disk full"), run.checkpoint(7):
            raise OSError("disk full")
        there = scraped(run)
    assert there["checkpoint_failures_total"] == 1
    assert "checkpoint_last_iteration" not in there
    assert there["run_phase{phase=train}"] == 1


def test_a_resumed_run_goes_on_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iteration and tokens go on from the checkpoint; its loading is measured, its attempt counted."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    with TrainingRun("r", to="scrape:0", linger_s=0) as run:
        with run.load_checkpoint():
            pass
        run.resume(500, consumed_tokens=50_000)
        run.step(loss=3.0, tokens=100)
        there = scraped(run)
    assert there["training_iteration"] == 501
    assert there["training_consumed_tokens"] == 50_100
    assert there["checkpoint_last_iteration"] == 500
    assert there["checkpoint_load_duration_seconds_count"] == 1
    assert there["run_attempt"] == 2
    assert there["run_info{attempt=2}"] == 1
    assert there["run_time_seconds_total{bucket=startup}"] == 0
    assert there["run_time_seconds_total{bucket=restart}"] > 0


def test_the_configuration_is_shown_and_no_secret() -> None:
    """Options that are worth comparing; what looks like a secret stays out."""
    config = argparse.Namespace(lr=0.5, optimizer="adam", tensor_model_parallel_size=8, bf16=True, hf_token="hf_abc")
    with TrainingRun("r", to="scrape:0", config=config, linger_s=0) as run:
        there = scraped(run)
    assert there["run_config{option=lr,value=0.5}"] == 1
    assert there["run_config{option=optimizer,value=adam}"] == 1
    assert there["run_info{attempt=0,precision=bf16,tp=8}"] == 1
    assert "hf_" not in str(there)


def test_off_unless_somebody_says_on(caplog: pytest.LogCaptureFixture) -> None:
    """Without the switch and without a way out nothing is exported, and every call works."""
    with TrainingRun("r") as run, managed_span("job", "x") as span:
        run.step(loss=1.0, tokens=5)
        with run.evaluation(), run.checkpoint():
            run.record(catalog.MFU, 0.5)
        assert span is None
    assert run.meter is None
    assert run.telemetry.addresses == ()


@pytest.mark.parametrize(("rank", "said"), [("0", 1), ("1", 0), ("x", 0)])
def test_rank_0_says_that_telemetry_is_off(
    rank: str, said: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who forgot the switch is told once; who switched it off, or runs another rank, is not."""
    monkeypatch.setattr(setup, "_once", Once("test"))
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    set_up()
    set_up()
    monkeypatch.setenv("MEGATRON_OTEL_ENABLED", "0")
    set_up()
    assert len([line for line in caplog.messages if line.startswith("emitter: telemetry is off.")]) == said


def test_the_environment_can_switch_off_what_a_program_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs a program need not edit it to silence it."""
    monkeypatch.setenv("MEGATRON_OTEL_ENABLED", "0")
    with TrainingRun("r", to="scrape:0") as run:
        assert run.meter is None


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that names nothing is configured from outside."""
    monkeypatch.setenv("NEMO_LENS_ENABLED", "1")
    monkeypatch.setenv("NEMO_LENS_RUN_ID", "from-outside")
    monkeypatch.setenv("MEGATRON_OTEL_EXPORTER", "scrape:0")
    with TrainingRun(linger_s=0) as run:
        assert run.run_id == "from-outside"
        assert len(run.telemetry.addresses) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK_STRATEGY", "single"), ("SPAN_GROUPS", "steps"), ("EXPORTER", "otpl"), ("SAMPLING_STRATEGY", "rank_awar")],
)
def test_a_wrong_setting_is_an_error_at_set_up(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Loud at the start, with what was given; and nothing is left open."""
    monkeypatch.setenv(f"MEGATRON_OTEL_{name}", value)
    with pytest.raises(ValueError, match=value):
        TrainingRun("r", to=None if name == "EXPORTER" else "scrape:0", arguments=argparse.Namespace(otel_enabled=True))


def test_a_wrong_number_of_steps_is_refused() -> None:
    """An interval counts steps."""
    with pytest.raises(ValueError, match="log_every counts steps"):
        TrainingRun("r", log_every=0)


def test_a_taken_port_does_not_stop_training(caplog: pytest.LogCaptureFixture) -> None:
    """A warning, and the loop goes on; what other ways out there are stay open."""
    with TrainingRun("first", to="scrape:0", linger_s=0) as first:
        port = first.telemetry.addresses[0][1]
        with TrainingRun("second", to=f"scrape:{port}", linger_s=0) as second:
            second.step(loss=1.0)
            assert second.telemetry.addresses == ()
    assert "the port must be free" in caplog.text


def test_ranks_of_a_node_take_a_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several ranks of a node export, the port is the first one's plus the local rank."""
    with TrainingRun("free", to="scrape:0", linger_s=0) as probe:
        port = probe.telemetry.addresses[0][1]
    for name, value in {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MEGATRON_OTEL_RANK_STRATEGY", "all_ranks")
    with TrainingRun("r", to=f"scrape:{port - 1}", linger_s=0) as run:
        assert run.telemetry.addresses[0][1] == port
        assert scraped(run)["run_world_size"] == 16
        assert scraped(run)["run_gpus_per_node"] == 8


def test_a_signal_handler_of_the_program_stays() -> None:
    """Who looks after SIGTERM itself, to save a checkpoint, goes on doing so."""

    def own(_number: int, _frame: object) -> None:
        """Save a checkpoint."""

    before = signal.signal(signal.SIGTERM, own)
    try:
        with TrainingRun("r", to="scrape:0", linger_s=0):
            assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_the_sdk_training_goes_on() -> None:
    """An image without the SDK gets one warning that says what to install."""
    code = (
        "import sys, logging\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "logging.basicConfig()\n"
        "from emitter import TrainingRun\n"
        "with TrainingRun('r', to='scrape:0') as run:\n"
        "    run.step(loss=1.0)\n"
        "print(run.meter)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "None\n"
    assert done.stderr.count("Install megatron-watch[otlp]. Training goes on without.") == 1


def test_set_up_alone_says_who_the_run_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that only swaps Megatron-LM's function gets size, attempt and configuration exported."""
    for name, value in {"RANK": "15", "WORLD_SIZE": "16", "LOCAL_RANK": "7", "LOCAL_WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    with set_up(argparse.Namespace(lr=0.5), run_id="r`1", to="scrape:0") as telemetry:
        record_training_metrics(telemetry.meter, loss=2.5)
        there = scraped(telemetry)
    assert telemetry.run_id == "r_1"
    assert (there["run_world_size"], there["run_gpus_per_node"], there["run_attempt"]) == (16, 8, 3)
    assert there["run_config{option=lr,value=0.5}"] == 1
    assert there["training_loss"] == 2.5


class Unfilled(Mapping[str, object]):
    """A configuration that raises where a value is missing, as OmegaConf's does."""

    def __getitem__(self, name: str) -> object:
        if name == "seed":
            raise KeyError("Missing mandatory value: seed")
        return 0.5

    def __iter__(self) -> Iterator[str]:
        return iter(("lr", "seed"))

    def __len__(self) -> int:
        return 2


WRONG: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "sampling strategy": ({"MEGATRON_OTEL_SAMPLING_STRATEGY": "rank_awar"}, {}),
    "protocol": ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, {}),
    "destination": ({}, {"to": "scrap:9464"}),
    "no destination": ({}, {"to": []}),
    "port too high": ({"MEGATRON_OTEL_RANK_STRATEGY": "all_ranks"}, {"to": "scrape:65535"}),
    "interval": ({}, {"interval_s": 0}),
    "options": ({}, {"options": [1, 2]}),
}

STRANGE: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "options that raise": ({}, {"options": Unfilled()}),
    "export interval": ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, {"to": "console"}),
    "queue": ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, {"to": "console"}),
    "attribute limit": ({"OTEL_ATTRIBUTE_COUNT_LIMIT": "abc"}, {"to": "console"}),
    "exemplar filter": ({"OTEL_METRICS_EXEMPLAR_FILTER": "bogus"}, {"to": "console"}),
}
"""What the SDK alone would not take, and what is only partly readable."""

each_rank = pytest.mark.parametrize("rank", [0, 1])


@pytest.fixture
def of_two(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """One of two ranks on a node; the last one exports."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, str(rank))
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv("MEGATRON_OTEL_ENABLED", "1")


@each_rank
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_wrong_on_every_rank(name: str, of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that does not export raises as well: one that went on alone would wait for the others."""
    environ, arguments = WRONG[name]
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match="got"):
        set_up(**arguments)


@each_rank
@pytest.mark.parametrize("name", STRANGE)
def test_what_only_the_sdk_refuses_stops_no_rank(name: str, of_two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank must not raise alone: a warning, and training goes on with what can be had."""
    environ, arguments = STRANGE[name]
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    with set_up(**{"to": "scrape:0", **arguments}) as telemetry:
        record_training_metrics(telemetry.meter, loss=2.5)
