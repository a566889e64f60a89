"""Queries of counters, histograms and shares, evaluated by promtool on series that begin, restart, pause and change
their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import SUITES, tool
from grafana_vars import interpolate

from dashboards.promql import Expr
from dashboards.queries import checkpoints, goodput, iteration, learning, memory, speed, values
from provisioning.site import parse
from provisioning.stack.prometheus import promtool

pytestmark = pytest.mark.live

SCOPE = parse("", "site.yaml").panel_scope
SAVES = "megatron_checkpoint_save_duration_seconds"
TIMER = "megatron_timer_duration_seconds"
TIME = "megatron_run_time_seconds_total"


def of(name: str, instance: str = "a:1", **labels: str) -> str:
    """A series of run r."""
    inside = {"nemo_run_id": "r", "job": "training", "instance": instance, **labels}
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in inside.items()) + "}"


def check(expr: Expr, series: Mapping[str, str], at: str, expected: Mapping[str, float], folder: Path) -> None:
    """What a panel's expression returns for run r, by the labels besides the run; a sample every minute from 0 on."""
    answer = [
        {"labels": '{nemo_run_id="r"' + (f",{labels}" if labels else "") + "}", "value": value}
        for labels, value in expected.items()
    ]
    asked = interpolate(str(expr), "r", window="5m", scrape_s=60)
    test = {
        "rule_files": [],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": samples} for name, samples in series.items()],
                "promql_expr_test": [{"expr": asked, "eval_time": at, "exp_samples": answer}],
            }
        ],
    }
    file = folder / "test.json"
    file.write_text(json.dumps(test))
    promtool("test", "rules", str(file), binary=tool("promtool", SUITES["prometheus2"]))


def histogram(name: str, count: str, total: str, instance: str = "a:1", **labels: str) -> dict[str, str]:
    """Count and sum of a histogram."""
    return {of(f"{name}_count", instance, **labels): count, of(f"{name}_sum", instance, **labels): total}


@pytest.mark.parametrize(
    ("series", "mean"),
    [
        pytest.param(histogram(SAVES, "1x20 2x9", "10x20 40x9"), 30, id="the second of two"),
        pytest.param(histogram(SAVES, "_x20 1x9", "_x20 12x9"), 12, id="the very first, which is in no difference"),
        pytest.param(histogram(SAVES, "5x20 1x9", "50x20 60x9"), 60, id="the first of a restarted process"),
        pytest.param(histogram(SAVES, "1x10 _x7 2x9", "10x10 _x7 40x9"), 30, id="behind an outage of the scrape"),
        pytest.param(
            histogram(SAVES, "3x29", "90x29") | histogram(SAVES, "1x20 2x9", "10x20 40x9", "b:1"),
            30,
            id="in one process of two",
        ),
        pytest.param(
            histogram(SAVES, "1x20 2x9", "10x20 40x9")
            | histogram(SAVES.removesuffix("_seconds"), "1x20 2x9", "10x20 40x9"),
            30,
            id="under two names at once",
        ),
        pytest.param(
            histogram(SAVES, "1x20 stale", "10x20 stale")
            | histogram(SAVES.removesuffix("_seconds"), "_x20 2x9", "_x20 40x9"),
            30,
            id="as the name changes",
        ),
    ],
)
def test_the_mean_is_that_of_what_was_observed_within_the_window(
    series: dict[str, str], mean: float, tmp_path: Path
) -> None:
    """Wherever the observation falls in the life of the histogram."""
    check(checkpoints.save_time(SCOPE), series, "22m", {"": mean}, tmp_path)


def test_there_is_no_mean_of_nothing(tmp_path: Path) -> None:
    """A window without a checkpoint is a hole, not a zero or an old value."""
    check(checkpoints.save_time(SCOPE), histogram(SAVES, "1x10 2x19", "10x10 40x19"), "25m", {}, tmp_path)


@pytest.mark.parametrize(
    ("counted", "growth"),
    [
        pytest.param("0x20 1x9", 1, id="one"),
        pytest.param("7x29", 0, id="none"),
        pytest.param("_x20 2x9", 2, id="born with it"),
        pytest.param("7x20 1x9", 1, id="a restarted process"),
        pytest.param("7x11 _x7 7x9", 0, id="none behind an outage of the scrape"),
    ],
)
def test_a_counter_grows_by_what_happened_within_the_window(counted: str, growth: float, tmp_path: Path) -> None:
    """Zero is zero, and nothing is counted twice or forgotten."""
    series = {of("megatron_checkpoint_failures_total"): counted}
    check(checkpoints.failed_checkpoints(SCOPE), series, "23m", {"": growth}, tmp_path)


def spent(instance: str = "a:1", **buckets: str) -> dict[str, str]:
    """Seconds by bucket."""
    return {of(TIME, instance, bucket=bucket): seconds for bucket, seconds in buckets.items()}


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(spent(productive="0+45x30", checkpoint="0+15x30", stalled="0x30"), id="one process"),
        pytest.param(
            spent(productive="0+45x12 stale", checkpoint="0+15x12 stale", stalled="0x12 stale")
            | spent("b:1", productive="_x14 0+45x14", checkpoint="_x14 0+15x14", stalled="_x14 0x14"),
            id="one after the other",
        ),
        pytest.param(
            spent(productive="0+45x14 0+45x14", checkpoint="0+15x14 0+15x14", stalled="0x29"), id="on one target"
        ),
        pytest.param(
            spent(productive="0+45x30", checkpoint="0+15x30", stalled="0x30")
            | spent("b:1", productive="0+45x30", checkpoint="0+15x30", stalled="0x30"),
            id="two ranks",
        ),
    ],
)
def test_shares_of_the_time_add_up_to_one(series: dict[str, str], tmp_path: Path) -> None:
    """Over the window and over the range; attempts follow each other, and ranks agree."""
    check(
        goodput.time_share(SCOPE, "$__range", goodput.PRODUCTIVE),
        series,
        "27m",
        {'bucket="productive"': 0.75},
        tmp_path,
    )
    others = {'bucket="checkpoint"': 0.25, 'bucket="stalled"': 0}
    check(goodput.time_share(SCOPE, "$window", goodput.LOST), series, "27m", others, tmp_path)


def test_an_ended_run_has_no_shares(tmp_path: Path) -> None:
    """Where no time passes there is nothing to share: a hole, not NaN."""
    check(goodput.time_share(SCOPE, "$window", goodput.PRODUCTIVE), spent(productive="100x30"), "25m", {}, tmp_path)


def phases(**times: tuple[str, str]) -> dict[str, str]:
    """Minimum and maximum across ranks of each phase."""
    return {
        of(TIMER, phase=phase.replace("_", "-"), agg=agg): time
        for phase, pair in times.items()
        for agg, time in zip(("min", "max"), pair, strict=True)
    }


def test_the_spread_shows_the_straggler_and_no_noise(tmp_path: Path) -> None:
    """A short phase has a large ratio and no meaning; one with a minimum of 0 has no ratio."""
    series = phases(forward_compute=("4x9", "5x9"), batch_generator=("0.001x9", "0.02x9"), forward_recv=("0x9", "1x9"))
    check(iteration.phase_spread(SCOPE), series, "5m", {'phase="forward-compute"': 1.25}, tmp_path)
    slowest = {'phase="forward-compute"': 5, 'phase="batch-generator"': 0.02, 'phase="forward-recv"': 1}
    check(iteration.phase_time(SCOPE), series, "5m", slowest, tmp_path)


def test_spans_are_told_apart(tmp_path: Path) -> None:
    """One line a span, whatever its group is."""
    name = "megatron_span_duration_seconds"
    series = histogram(name, "0+1x29", "0+2x29", span="megatron.train_step", group="step") | histogram(
        name, "_x20 1x9", "_x20 30x9", span="megatron.save_checkpoint", group="checkpoint"
    )
    expected = {'span="megatron.train_step"': 2, 'span="megatron.save_checkpoint"': 30}
    check(iteration.span_time(SCOPE), series, "22m", expected, tmp_path)


@pytest.mark.parametrize("odd", ["NaN", "Inf"])
def test_what_is_not_finite_is_not_drawn(odd: str, tmp_path: Path) -> None:
    """A loss that is no number leaves a hole and no error."""
    queries = (
        (checkpoints.validation_loss, "megatron_training_validation_loss"),
        (learning.loss_max, "megatron_training_loss_max"),
    )
    for query, name in queries:
        check(query(SCOPE), {of(name): f"1 {odd} {odd}"}, "2m", {}, tmp_path)
        check(query(SCOPE), {of(name): f"1 {odd} {odd}"}, "0m", {"": 1}, tmp_path)


def test_what_is_lost_ends_with_the_run(tmp_path: Path) -> None:
    """Work since the checkpoint grows while the run lives, not while it is dead."""
    series = {
        of("megatron_training_loss"): "1x20 stale",
        of("megatron_checkpoint_last_success_time_seconds"): "_x4 300x16 stale",
    }
    check(checkpoints.since_checkpoint(SCOPE), series, "15m", {"": 600}, tmp_path)
    check(checkpoints.since_checkpoint(SCOPE), series, "40m", {"": 900}, tmp_path)


@pytest.mark.parametrize(("at", "number"), [("15m", 900), ("18m", 500), ("40m", 900)])
def test_a_run_that_went_back_shows_where_it_is_now(at: str, number: float, tmp_path: Path) -> None:
    """The last checkpoint is the living attempt's; of a run that is gone it is the farthest."""
    name = "megatron_checkpoint_last_iteration"
    series = {of(name): "900x15 stale", of(name, "b:1"): "_x16 500x9 stale"}
    check(values.last_known(checkpoints.last_checkpoint, SCOPE), series, at, {"": number}, tmp_path)


def test_tokens_of_a_node_and_day(tmp_path: Path) -> None:
    """Billions, of one node: the unit of the budget."""
    series = {
        of("megatron_training_tokens_per_sec"): "1000000x9",
        of("megatron_run_world_size"): "64x9",
        of("megatron_run_gpus_per_node"): "8x9",
    }
    check(speed.tokens_per_node_and_day(SCOPE), series, "5m", {"": 10.8}, tmp_path)
    check(memory.retries(SCOPE), series, "5m", {}, tmp_path)
