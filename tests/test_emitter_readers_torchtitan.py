"""torchtitan's lines, generation by generation."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import reader, torchtitan
from emitter.records import LineCounts, Record

LINE = torchtitan.FAMILY.example + "\n"
MESH = "[titan] 2031-05-06 07:00:00,321 - root - INFO - Building device mesh with parallelism: "
DEGREES = "pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=4\n"
STAMP = "[titan] 2031-05-06 07:{}:00,321 - root - INFO - "


def read(text: str) -> tuple[list[Record], LineCounts]:
    """Records of a log with all of its keys read, and what became of its lines."""
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert (log.summary.format, log.summary.unread) == ("torchtitan", ())
    return records, log.counts


def results(text: str, kind: str = "train") -> list[dict[str, Any]]:
    """Values by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text)[0]
        if record.kind == kind
    ]


def step(number: int, minute: int, prefix: str = "") -> str:
    """A line of 2026 at a minute past seven."""
    return prefix + LINE.replace("07:08:09", f"07:{minute:02d}:09").replace("step: 120", f"step: {number}")


ALL = {
    "iteration": 120,
    "loss": 3.25,
    "grad_norm": 0.875,
    "memory_max_reserved": 24.5 * 1024**3,
    "memory_max_reserved_share": 0.3062,
    "throughput_tflops": 222.5,
    "mfu": 0.225,
}


def test_every_field() -> None:
    """The line of 2026: memory is reserved, in GiB and as a share; tokens of one device are none of the job."""
    assert results(LINE) == [ALL]


@pytest.mark.parametrize(
    "mesh", [MESH + DEGREES, "Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 2]\n"]
)
def test_tokens_of_all_devices(mesh: str) -> None:
    """The mesh tells how many devices there are; experts live on devices that are counted already."""
    records = read(mesh + LINE)[0]
    assert records[1].values == {catalog.WORLD_SIZE: 16}
    assert records[2].values[catalog.TOKENS_PER_SEC] == 4096 * 16


def test_march_2024() -> None:
    """The first generation: words per second, and a share of the memory that was active."""
    line = "2031-05-06 07:08:09,321 - root - INFO - step: 10  loss:  8.1250  wps:  12,345  peak_memory:  63.4%\n"
    assert results(line) == [{"iteration": 10, "loss": 8.125}]
    assert results("Building 1-D device mesh with ['dp'], [8]\n" + line)[0]["tokens_per_sec"] == 12_345 * 8


def test_april_2024_coloured() -> None:
    """The second generation, with the colors that it had on any terminal."""
    line = (
        "0: 2031-05-06 07:08:09,321 - root - INFO - \x1b[36mstep: 10  \x1b[32mloss:  8.1250  \x1b[33mmemory: "
        "24.50GiB(30.62%)  \x1b[34mwps: 1,012,345  \x1b[35mmfu: 34.25%\x1b[39m\n"
    )
    assert results(line) == [
        {
            "iteration": 10,
            "loss": 8.125,
            "memory_max_reserved": 24.5 * 1024**3,
            "memory_max_reserved_share": 0.3062,
            "mfu": 0.3425,
        }
    ]


def test_2025_without_prefix() -> None:
    """The third generation, copied without what the logger puts in front; thousands have commas."""
    line = (
        "step: 10  loss:  8.1250  grad_norm:  0.8750  memory: 24.50GiB(30.62%)  tps: 4,096  tflops: 1,339.25  mfu: 1%\n"
    )
    assert results(line)[0]["throughput_tflops"] == 1339.25


def test_nan() -> None:
    """A NaN is padded, and is one."""
    values = results(LINE.replace(" 3.25000", "     nan").replace(" 0.8750", "    nan"))[0]
    assert math.isnan(values["loss"])
    assert math.isnan(values["grad_norm"])


def test_utilization_that_is_not_defined() -> None:
    """`mfu: N/A` is no value and no trouble, also where others have one."""
    lines = step(110, 1) + step(120, 2).replace("mfu: 22.50%", "mfu: N/A") + step(130, 3)
    assert [values.get("mfu") for values in results(lines)] == [0.225, None, 0.225]


def test_unit_of_memory() -> None:
    """Memory in another unit is not taken for GiB; the line has the rest."""
    log = reader()
    (record,) = log.feed(LINE.replace("GiB", "MiB").encode()) + log.close()
    assert catalog.MEMORY_MAX_RESERVED not in record.values
    assert record.values[catalog.THROUGHPUT_TFLOPS] == 222.5
    assert log.summary.unread == ("memory",)


def test_all_ranks_print() -> None:
    """The same step from several ranks is one result, also where their memory differs."""
    lines = "".join(step(120, 1, f"{rank}: ") for rank in range(4)).replace("24.50GiB", "24.75GiB", 1)
    records, counts = read(lines + step(130, 2, "1: ") + step(130, 2, "0: "))
    assert [record.values[catalog.ITERATION] for record in records] == [120, 130]
    assert counts == LineCounts(records=2, recognized=4)


def test_what_follows_is_not_swallowed() -> None:
    """A line with keys and values of its own is no part of the training line before it, nor is it waited for."""
    log = reader()
    assert len(log.feed(LINE.encode())) == 1
    assert log.feed(b"model llama3 size: 8,030,261,248 total parameters\n") + log.close() == []
    assert (log.counts, log.summary.unread) == (LineCounts(records=1, reasons={"unknown": 1}), ())


def test_step_duration_by_stamps() -> None:
    """The line has no duration: it is the time since the line before, shared among the steps."""
    assert [values.get("step_duration_ms") for values in results(step(100, 1) + step(120, 3) + step(130, 3))] == [
        None,
        6000.0,
        0.0,
    ]


def test_validation() -> None:
    """The validation line has a step and a loss too, and is no training."""
    line = STAMP.format("09") + "validate step: 120  loss:  3.1250  memory: 24.50GiB(30.62%)  tps: 6,001\n"
    records = read(LINE + line)[0]
    assert [record.kind for record in records] == ["train", "validation"]
    assert records[1].values == {catalog.ITERATION: 120, catalog.VALIDATION_LOSS: 3.125}


def test_sizes() -> None:
    """Versions that tell the sizes where training starts make tokens of samples; a later start goes on from there."""
    sizes = "with local batch size 8, global batch size 64, sequence length 8192, total steps 1000 (warmup 20)\n"
    first = read(STAMP.format("01") + "Training starts at step 1, " + sizes + LINE)[0]
    assert first[0].values == {catalog.TARGET_ITERATION: 1000, catalog.GLOBAL_BATCH_SIZE: 64}
    second = read(LINE + STAMP.format("09") + "Training starts at step 101\n" + step(110, 10))[0]
    assert [(record.kind, record.attempt) for record in second] == [("train", 0), ("resume", 1), ("train", 1)]
    assert second[1].values == {catalog.CHECKPOINT_LAST_ITERATION: 100}


def test_sizes_of_2026() -> None:
    """Newer versions tell the steps apart from where training starts."""
    line = (
        "Trainer is initialized with 8 tokens per DP rank, maximum context length 8192, total steps 1000 (warmup 2)\n"
    )
    assert read(line + LINE)[0][0].values == {catalog.TARGET_ITERATION: 1000}


def test_life_of_a_run() -> None:
    """A checkpoint takes the time between its lines; retries are counted, as totals, by the step that follows."""
    text = (
        step(110, 1)
        + STAMP.format("02")
        + "Saving the checkpoint (or staging if async is enabled).\n"
        + STAMP.format("03")
        + "Finished saving the checkpoint in 60.00 seconds.\n"
        + STAMP.format("04")
        + "WARNING: 3 CUDA memory allocation retries.\n"
        + step(120, 4)
        + STAMP.format("05")
        + "WARNING: 5 CUDA memory allocation retries.\n"
        + STAMP.format("05")
        + "WARNING: 1 CUDA OOM errors thrown.\n"
        + step(130, 5)
        + STAMP.format("06")
        + "Training completed\n"
    )
    records, counts = read(text)
    assert [record.kind for record in records] == ["train", "phase", "checkpoint", "train", "train", "end"]
    assert records[2].values == {catalog.CHECKPOINT_SAVE_DURATION: 60.0}
    assert [record.values.get(catalog.MEMORY_ALLOC_RETRIES) for record in records[3:5]] == [3, 2]
    assert records[4].values[catalog.MEMORY_OOMS] == 1
    assert counts == LineCounts(records=4, recognized=5)
