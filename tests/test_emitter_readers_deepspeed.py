"""DeepSpeed's lines: alone, beside those of Megatron-DeepSpeed, and beside Argonne's."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import argonne, deepspeed, megatron_deepspeed, reader
from emitter.records import LineCounts, Record

MEGATRON = megatron_deepspeed.FAMILY.example
ARGONNE = argonne.FAMILY.example

STAMP = "[2031-05-06 07:08:09,321] [INFO] [logging.py:107:log_dist] [Rank 0] "
OVERFLOW = (
    "[2031-05-06 07:08:05,321] [INFO] [stage_1_and_2.py:1644:step] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
    "Attempted loss scale: 8192.0, reducing to 4096.0\n"
)
STEP = STAMP + "step=120, skipped=7, lr=[0.00025, 0.0005], mom=[(0.9, 0.95), (0.9, 0.95)]\n"
TIMER = (
    "[2031-05-06 07:08:09,322] [INFO] [timer.py:264:stop] epoch=0/micro_step=480/global_step=120, "
    "RunningAvgSamplesPerSec=16.25, CurrSamplesPerSec=16.5, MemAllocated=3.25GB, MaxMemAllocated=24.5GB\n"
)
WORLD = "using world size: 8, data-parallel-size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1\n"


def read(text: str, name: str | None = None) -> tuple[list[Record], LineCounts, str | None]:
    """Records of a log, what became of its lines, and the family."""
    log = reader(name)
    records = log.feed(text.encode()) + log.close()
    return records, log.counts, log.summary.format


def results(text: str, kind: str = "train") -> list[dict[str, Any]]:
    """Values by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text)[0]
        if record.kind == kind
    ]


def pipeline(step: int, loss: str = "3.2500") -> str:
    """A line of the pipeline engine."""
    return f"steps: {step} loss: {loss} iter time (s): 1.250 samples/sec: 204.800\n"


def plain(iteration: int, more: str = "", *, loss: str = "lm loss: 3.250000E+00 | ", skipped: int = 0) -> str:
    """A training line that the original Megatron-LM prints as well."""
    return (
        f" iteration {iteration:8d}/    9000 | elapsed time per iteration (ms): 1250.5 | learning rate: 1.500E-04 | "
        f"{loss}loss scale: 4096.0 | number of skipped iterations: {skipped:3d} | "
        f"number of nan iterations:   0 |{more}\n"
    )


def test_pipeline_engine() -> None:
    """Where nothing else reports the step, the line of the pipeline engine does, and a NaN is one."""
    records, counts, family = read(pipeline(40) + STEP + TIMER + pipeline(50, "nan"))
    assert family == "deepspeed"
    assert counts == LineCounts(records=3, recognized=1)
    first, memory, second = records
    assert {metric.short: value for metric, value in first.values.items()} == {
        "iteration": 40,
        "loss": 3.25,
        "step_duration_ms": 1250.0,
    }
    assert memory.values == {catalog.MEMORY_ALLOCATED: 24.5}
    assert math.isnan(second.values[catalog.LOSS])
    assert second.values[catalog.LEARNING_RATE] == 0.00025


def test_pipeline_engine_with_several_losses() -> None:
    """The total is the loss; its parts are known and have no metric."""
    line = "steps: 40 loss: 3.2500 lm loss: 3.1250 moe loss: 0.1250 iter time (s): 1.250 samples/sec: 204.800\n"
    assert results(line) == [{"iteration": 40, "loss": 3.25, "step_duration_ms": 1250.0}]


@pytest.mark.parametrize("further", [plain, lambda iteration: MEGATRON.replace("    120/", f"{iteration:7d}/") + "\n"])
def test_pipeline_engine_beside_a_training_line(further: Any) -> None:
    """Where both report a step it is one step: that of the engine until the other shows, then the other's."""
    log = pipeline(1, "3.2501") + further(1) + pipeline(2) + further(2) + pipeline(3) + further(3)
    records, counts, family = read(log)
    assert family in ("megatron", "megatron-deepspeed")
    assert [record.values[catalog.ITERATION] for record in records] == [1, 2, 3]
    assert [record.attempt for record in records] == [0, 0, 0]
    assert [catalog.SKIPPED_ITERS in record.values for record in records] == [False, True, True]
    assert counts == LineCounts(records=3, recognized=3)


def test_pipeline_engine_then_a_rarer_training_line() -> None:
    """The engine's steps up to the first training line are told; that line's own step is not told twice."""
    log = "".join(pipeline(step) for step in range(1, 11)) + plain(10) + pipeline(11) + plain(20)
    assert [values["iteration"] for values in results(log)] == [*range(1, 11), 20]


def test_forced_format() -> None:
    """Who asks for the engine's lines gets them alone."""
    records, _, family = read(pipeline(1) + plain(1) + pipeline(2), "deepspeed")
    assert family == "deepspeed"
    assert [record.values[catalog.LOSS] for record in records] == [3.25, 3.25]


def test_overflow_is_a_skip() -> None:
    """An overflow counts for the line that follows, which reports no skip, and for that one alone."""
    values = results(plain(1) + OVERFLOW + plain(2) + OVERFLOW + OVERFLOW + plain(4) + plain(5))
    assert [line["skipped_iters"] for line in values] == [0, 1, 2, 0]


def test_overflow_is_not_counted_twice() -> None:
    """Where the line reports the skip as well it is one skip."""
    assert [line["skipped_iters"] for line in results(plain(1) + OVERFLOW + plain(2, skipped=1))] == [0, 1]


@pytest.mark.parametrize(
    "line",
    [
        OVERFLOW,
        OVERFLOW.replace("[deepspeed]", "[deepscale]"),
        "[deepspeed] OVERFLOW! Rank 0 Skipping step.\n",
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8192, reducing to 4096\n",
        "fp16 dynamic loss scale overflow! Rank 0 Skipping step. Attempted loss scale: 8192.0, reducing to 4096.0\n",
        "[deepspeed] fp16 dynamic loss scale overflow! Skipping step. Attempted loss scale: 8.0, reducing to 4.0\n",
    ],
)
def test_spellings_of_an_overflow(line: str) -> None:
    """Every spelling of an overflow is one; the loss scale that the training line prints counts."""
    records, counts, _ = read(line + plain(2))
    assert [record.values[catalog.SKIPPED_ITERS] for record in records] == [1]
    assert [record.values[catalog.LOSS_SCALE] for record in records] == [4096.0]
    assert counts == LineCounts(records=1, recognized=1)


def test_overflow_of_other_ranks() -> None:
    """Old versions print it on all ranks: only rank 0 counts."""
    text = OVERFLOW + OVERFLOW.replace("Rank 0", "Rank 1") + OVERFLOW.replace("Rank 0", "Rank 10") + plain(2)
    assert [line["skipped_iters"] for line in results(text)] == [1]


def test_overflow_explains_an_absent_loss() -> None:
    """A line without a loss reports a NaN, unless all of its iterations were skipped."""
    skipped = results(plain(1) + OVERFLOW + plain(2, loss=""))
    assert "loss" not in skipped[1]
    assert math.isnan(results(plain(1) + plain(2, loss=""))[1]["loss"])


def test_overflow_before_a_crash() -> None:
    """What was counted before the process died is not the next one's."""
    log = plain(1) + OVERFLOW + WORLD + plain(1)
    assert [line["skipped_iters"] for line in results(log)] == [0, 0]


def test_total_of_skips_is_not_counted() -> None:
    """The total behind `skipped=` goes on from a checkpoint: it is no skip of this interval."""
    assert [line["skipped_iters"] for line in results(plain(119) + STEP + plain(120))] == [0, 0]


def test_memory_of_the_timer() -> None:
    """The engine's timer tells the peak, as a report of its own."""
    assert results(plain(119) + TIMER, "memory") == [{"memory_allocated_gb": 24.5}]


def test_bloom() -> None:
    """BLOOM's line: seconds, consumed tokens, throughput at the end, no loss scale."""
    records, _, family = read(MEGATRON + "\n")
    assert family == "megatron-deepspeed"
    assert {metric.short: value for metric, value in records[0].values.items()} == {
        "iteration": 120,
        "target_iteration": 9000,
        "consumed_samples": 3840,
        "consumed_tokens": 7_864_320,
        "step_duration_ms": 2000.0,
        "learning_rate": 1.5e-4,
        "global_batch_size": 32,
        "loss": 3.25,
        "grad_norm": 0.875,
        "num_zeros": 0.0,
        "skipped_iters": 0,
        "throughput_tflops": 102.5,
    }


@pytest.mark.parametrize("tgs", ["tokens per gpu per second (tgs)", "tokens per gpu per second(tgs)"])
def test_layout_of_2023(tgs: str) -> None:
    """The line of 2023: tokens per GPU become the job's, lengths of sequences are known."""
    more = (
        " actual seqlen:  2048 | curriculum seqlen:  2048 | random ltd reserved length:  1024 | "
        f"samples per second: 16.000 | {tgs}: 4096.000 | TFLOPs: 51.25 |"
    )
    log = reader()
    records = log.feed((WORLD + plain(120, more)).encode()) + log.close()
    assert (log.summary.format, log.summary.unread) == ("megatron-deepspeed", ())
    assert records[-1].values[catalog.TOKENS_PER_SEC] == 4096.0 * 8
    assert records[-1].values[catalog.THROUGHPUT_TFLOPS] == 51.25


def test_job_wide_tokens_and_a_misspelt_key() -> None:
    """Habana prints the tokens of the whole job, ModelLink misspells the batch size."""
    more = " samples per second: 16.0 | gloabl batch size:    32 | tokens per second: 32768.0 |"
    (values,) = results(plain(120, more))
    assert values["tokens_per_sec"] == 32768.0
    assert values["global_batch_size"] == 32


def test_hyphenated_loss() -> None:
    """The key of the loss was `lm-loss` for a while."""
    records, _, family = read(plain(1, loss="lm-loss: 3.250000E+00 | "))
    assert family == "megatron-deepspeed"
    assert records[0].values[catalog.LOSS] == 3.25


def test_recognized_line_then_a_plainer_one() -> None:
    """Once a log is recognized, a line that lacks what told it is read as well."""
    _, counts, family = read(MEGATRON + "\n" + plain(130))
    assert (family, counts) == ("megatron-deepspeed", LineCounts(records=2))


def test_argonne() -> None:
    """Argonne's line: every field, with the throughput that Megatron-LM would report."""
    records, _, family = read(WORLD + ARGONNE + "\n")
    assert family == "argonne"
    assert {metric.short: value for metric, value in records[-1].values.items()} == {
        "iteration": 120,
        "target_iteration": 9000,
        "consumed_samples": 3840,
        "consumed_tokens": 7_864_320,
        "step_duration_ms": 2000.0,
        "learning_rate": 1.5e-4,
        "global_batch_size": 32,
        "loss": 3.25,
        "loss_scale": 1.0,
        "grad_norm": 0.875,
        "skipped_iters": 0,
        "tokens_per_sec": 4096.0 * 8,
        "throughput_tflops": 102.5,
    }


@pytest.mark.parametrize(
    ("place", "throughput"),
    [
        ("[2031-05-06 07:08:09][INFO][training:1609] -  ", "[LM]-TFLOPs=102.50 | [DS]-TFLOPs=131.25"),
        ("[2031-05-06 07:08:09,321987][I][megatron/training_log:402:training_log]  ", "TFLOPs=102.50"),
    ],
)
def test_generations_of_argonne(place: str, throughput: str) -> None:
    """Its loggers and its throughputs changed; what is read did not."""
    line = place + ARGONNE[ARGONNE.index("iteration=") : ARGONNE.index("[LM]")] + throughput + " |"
    records, _, family = read(line + "\n")
    assert family == "argonne"
    assert records[0].values[catalog.THROUGHPUT_TFLOPS] == 102.5
    assert records[0].stamp_s is not None


def test_argonne_beside_deepspeed() -> None:
    """DeepSpeed's lines around it are reports of their own and no second result."""
    timers = STAMP + "time (ms) | fwd: 715.25 | bwd: 2402.50 | step: 160.75\n"
    records, counts, _ = read(STEP + TIMER + timers + timers.replace("fwd", "fwd_microstep") + ARGONNE + "\n")
    assert [record.kind for record in records] == ["memory", "timers", "timers", "train"]
    assert records[1].series[catalog.TIMER_DURATION]["fwd", "max"] == 0.71525
    assert records[3].values[catalog.LEARNING_RATE] == 1.5e-4
    assert counts == LineCounts(records=4, recognized=1)


def test_silent_nan() -> None:
    """A loss that Megatron-DeepSpeed and Argonne leave out is a NaN."""
    for line, loss in ((MEGATRON, "lm loss: 3.250000E+00 | "), (ARGONNE, "lm loss=3.250000 | ")):
        (values,) = results(line.replace(loss, "") + "\n")
        assert math.isnan(values["loss"])


def test_fields_have_one_meaning() -> None:
    """What the engine prints beside a training line is the same for all: no family has marks of its own for it."""
    assert set(deepspeed.MARKS) <= set(megatron_deepspeed.FAMILY.others) & set(argonne.FAMILY.others)
