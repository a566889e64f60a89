"""Layouts with a key renamed, moved or added, another unit, a line wrapped: what can be read is, and no more."""

from __future__ import annotations

import math
import re

import pytest

from emitter import catalog
from emitter.readers import deepspeed, megatron, nanogpt, nanotron, primus, reader, torchtitan
from emitter.records import Record


def read(text: str, name: str | None = None) -> tuple[list[Record], tuple[str, ...]]:
    """Records of a log, and the keys that nobody could read."""
    log = reader(name)
    records = log.feed(text.encode()) + log.close()
    return records, log.summary.unread


def losses(text: str) -> list[float | None]:
    """The loss of each training line."""
    return [record.values.get(catalog.LOSS) for record in read(text)[0] if record.kind == "train"]


def lines(example: str, loss: str) -> str:
    """Four lines that are alike, so that the last ones are read by their form, with something in place of the loss."""
    made = [re.sub(r" lm loss: [^|]*\|", loss, example).replace("  120/", f"  {120 + step}/") for step in range(4)]
    return "".join(f"{line}\n" for line in made)


@pytest.mark.parametrize("example", [megatron.FAMILY.example, primus.FAMILY.example], ids=["megatron", "primus"])
@pytest.mark.parametrize("key", ["train loss", "text loss", "Loss", "train_loss_total"])
def test_loss_of_another_name(example: str, key: str) -> None:
    """A loss whose name nobody knows is no NaN: it is absent, and its key is named."""
    text = lines(example, f" {key}: 3.250000E+00 |")
    expected = 3.25 if key == "Loss" else None
    assert losses(text) == [expected] * 4
    assert read(text)[1] == (() if key == "Loss" else (key,))


@pytest.mark.parametrize("other", ["", " mtp_1 loss: 3.5 |", " sop loss: 0.5 |", " lossless ratio: 0.5 |"])
def test_silent_nan(other: str) -> None:
    """Where the loss is left out, it is NaN, whatever other losses that are known stand there."""
    found = losses(lines(megatron.FAMILY.example, other))
    assert len(found) == 4
    assert all(loss is not None and math.isnan(loss) for loss in found)


@pytest.mark.parametrize("loss", [" loss: 9.5 | lm loss: 3.25 |", " lm loss: 3.25 | loss: 9.5 |"])
def test_two_losses(loss: str) -> None:
    """Of a sum and the language model's loss in one line the latter counts, whichever comes first."""
    assert losses(lines(megatron.FAMILY.example, loss)) == [3.25] * 4


@pytest.mark.parametrize(
    ("head", "allocated_gib", "reserved_bytes"),
    [
        ("(MB) | allocated: 1.0 | max allocated: 2048.0 | reserved: 3.0 | max reserved: 4096.0", 2.0, 4_294_967_296),
        ("(MB) | allocated: 1.0 | max allocated: 2048.0 | cached: 3.0 | max cached: 4096.0", 2.0, 4_294_967_296),
        ("(GB) | max allocated: 70.0 | max reserved: 75.5", 65.192580223, 75_500_000_000),
        (
            "(GB) | mem-allocated-gigabytes: 51.25 | mem-reserved-gigabytes: 216.75 | "
            "mem-max-allocated-gigabytes: 194.5 | mem-max-reserved-gigabytes: 216.5 | mem-alloc-retires: 0",
            181.142240763,
            216_500_000_000,
        ),
    ],
    ids=["megatron", "megatron-2020", "gigabytes", "bridge"],
)
def test_memory_units(head: str, allocated_gib: float, reserved_bytes: float) -> None:
    """Memory is what its unit says: in the head of the line, or in the key."""
    (record,), _ = read(f"[Rank 0] (after 120 iterations) memory {head}\n", "megatron")
    assert record.values == {
        catalog.MEMORY_ALLOCATED: pytest.approx(allocated_gib),
        catalog.MEMORY_MAX_RESERVED: pytest.approx(reserved_bytes),
    }


@pytest.mark.parametrize(
    ("name", "example", "moved"),
    [
        (
            "torchtitan",
            torchtitan.FAMILY.example,
            "step: 120  epoch: 1  grad_norm:  0.8750  memory: 24.50GiB(30.62%)  tps: 4,096  tflops: 222.50  "
            "loss:  3.25000  mfu: 22.50%",
        ),
        ("nanogpt", nanogpt.FAMILY.example, "iter 120: time 2000.25ms, loss 3.2500, mfu 37.50%"),
        (
            "deepspeed",
            deepspeed.FAMILY.example,
            "steps: 40 iter time (s): 1.250 loss: 3.2500 samples/sec: 204.800",
        ),
        ("nanotron", nanotron.FAMILY.example, nanotron.FAMILY.example.partition("]: ")[2].replace(" ", "")),
    ],
)
def test_other_order(name: str, example: str, moved: str) -> None:
    """Fields in another order, or without blanks between, have the same values."""
    expected, found = (read(f"{line}\n")[0][0].values for line in (example, moved))
    assert found == expected
    assert read(f"{moved}\n", name)[0][0].values == expected


@pytest.mark.parametrize(
    "line",
    ["iter 120: nothing to report", "steps: 40 of this epoch: done", "step: 120  was skipped", "my iteration: 1 / 2"],
)
def test_no_training_lines(line: str) -> None:
    """Words that only begin as a training line does are none."""
    log = reader()
    assert log.feed(f"{line}\n".encode()) + log.close() == []
    assert log.counts.reasons == {"unknown": 1}


def wrapped(line: str, width: int) -> str:
    """A line as a narrow terminal has it."""
    return "".join(f"{line[at : at + width]}\n" for at in range(0, len(line), width))


@pytest.mark.parametrize("width", range(80, 150))
def test_wrapped_overflow(width: int) -> None:
    """The loss scale behind an overflow is read wherever that is wrapped."""
    line = (
        "[2031-05-06 07:08:08,321] [INFO] [stage3.py:2048:_overflow_clean_up] [deepspeed] OVERFLOW! Rank 0 "
        "Skipping step. Attempted loss scale: 65536, reducing to 32768"
    )
    step = "steps: 41 loss: 3.2500 iter time (s): 1.250 samples/sec: 204.800\n"
    records, _ = read(f"{deepspeed.FAMILY.example}\n{wrapped(line, width)}{step}")
    assert records[-1].values[catalog.LOSS_SCALE] == 32_768
    assert records[-1].values[catalog.SKIPPED_ITERS] == 1


@pytest.mark.parametrize("width", range(80, 125))
def test_wrapped_world_size(width: int) -> None:
    """The number of NeMo's processes is read wherever its line is wrapped."""
    line = "[2031-05-06 07:08:08,321] [NeMo] All distributed processes registered. Starting with 6464 processes"
    records, _ = read(wrapped(line, width), "nemo2")
    assert [record.values.get(catalog.WORLD_SIZE) for record in records if record.kind == "run"] == [6464]


@pytest.mark.parametrize("width", range(80, 175))
def test_wrapped_sizes(width: int) -> None:
    """The sizes of a run are read wherever torchtitan's line is wrapped."""
    line = (
        "[titan] 2031-05-06 07:08:08,321 - root - INFO - Training starts at step 1, with local batch size 8, "
        "global batch size 6464, sequence length 4096, total steps 9009 (warmup 200)"
    )
    records, _ = read(f"{wrapped(line, width)}{torchtitan.FAMILY.example}\n")
    values = {metric: value for record in records if record.kind == "run" for metric, value in record.values.items()}
    assert values == {catalog.GLOBAL_BATCH_SIZE: 6464, catalog.TARGET_ITERATION: 9009}
