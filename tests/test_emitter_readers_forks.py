"""What prints Megatron-LM's line with keys of its own: GPT-NeoX, Primus, MindSpeed, smaller forks, Megatron-Bridge."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import Family, gpt_neox, megatron, megatron_forks, mindspeed, primus, reader
from emitter.records import LineCounts, Record

WORLD = "using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"

NEOX = gpt_neox.FAMILY.example
LINE = megatron.FAMILY.example
FSDP2 = (
    "INFO [2031-05-06 07:08:09] >>  iteration      120/    9000 | consumed samples:       3840 | "
    "consumed tokens:    7864320 | elapsed time per iteration (ms): 2000.25 | tokens/s: 32768.00 | mfu: 37.50 | "
    "learning rate: 1.500000E-04 | global batch size:    32 | lm loss: 3.250000E+00 | grad norm: 0.875 | "
    "max_memory_allocated(GB): 24.50 | max_memory_reserved(GB): 30.25 | cpu_used_memory(GB): 96.50 | "
    "cpu_available_memory(GB): 31.50 | cpu_memory_usage(%): 75.4 |"
)
PRIMUS_2025 = (
    "[20310506 07:08:09][rank-7/8][INFO ] [--------trainer.py:2488] :  iteration      120/    9000 | "
    "consumed samples:         3840 | elapsed time per iteration (ms): 2000.0/2012.5 | "
    "hip mem usage/free/total/usage_ratio: 96.00GiB/96.00GiB/192.00GiB/50.00% | "
    "rocm mem usage/free/total/usage_ratio: 97.00GiB/95.00GiB/192.00GiB/50.52% | "
    "rank-3 max mem usage/usage_ratio: 98.00GiB/51.04% | throughput per GPU (TFLOP/s/GPU): 222.5/221.0 | "
    "tokens per GPU (tokens/s/GPU): 4096.0/4088.5 | learning rate: 1.500000E-04 | global batch size:    32 | "
    "lm loss: 3.250000E+00 | loss scale: 1.0 | grad norm: 0.875 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)
RIO = (
    " [2031-05-06 07:08:09] iteration      120/    9000 | consumed samples:         3840 | iteration time: 2.500 s "
    "samples/sec: 16.0 | TFLOPS: 102.5 | learning rate: 1.500000E-04 | global batch size:    32 | "
    "lm loss: 3.250000E+00 | loss scale: 1.0 | grad norm: 0.875 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)

COMMON = {
    "iteration": 120,
    "target_iteration": 9000,
    "consumed_samples": 3840,
    "step_duration_ms": 2000.0,
    "learning_rate": 1.5e-4,
    "global_batch_size": 32,
    "loss": 3.25,
    "loss_scale": 1.0,
    "grad_norm": 0.875,
    "skipped_iters": 0,
}


def read(text: str, family: Family | None) -> list[Record]:
    """Records of a log that is found to be of a family, with all of its keys read."""
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert (log.summary.format, log.summary.unread) == (family and family.name, ())
    return records


def results(text: str, family: Family) -> list[dict[str, Any]]:
    """Values of the training results by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text, family)
        if record.kind == "train"
    ]


def test_gpt_neox() -> None:
    """GPT-NeoX's line: every field, with the unit of its FLOP/s taken off."""
    (values,) = results(NEOX.replace("| lm_loss", "| MFU: 37.50% | HFU: 41.25% | lm_loss") + "\n", gpt_neox.FAMILY)
    assert values == {
        "iteration": 120,
        "target_iteration": 9000,
        "step_duration_ms": 2000.0,
        "learning_rate": 1.5e-4,
        "throughput_tflops": 102.5,
        "mfu": 0.375,
        "loss": 3.25,
        "loss_scale": 4096.0,
        "skipped_iters": 0,
    }


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("102.5TFLOPS", 102.5), ("1.5PFLOPS", 1500.0), ("900.0GFLOPS", 0.9), ("5.0FLOPS", 5e-12), ("102.5", None)],
)
def test_unit_of_flops(printed: str, expected: float | None) -> None:
    """FLOP/s have any unit, and without one they are not guessed."""
    assert gpt_neox.teraflops(printed) == expected


def test_gpt_neox_prints_nan() -> None:
    """GPT-NeoX prints a NaN: a loss that is absent is absent, and that of a skipped interval is none."""
    nan, absent = results(
        NEOX.replace("3.250000E+00", "NAN") + "\n" + NEOX.replace("120/", "130/").replace("lm_loss", "z_loss") + "\n",
        gpt_neox.FAMILY,
    )
    assert math.isnan(nan["loss"])
    assert "loss" not in absent


def test_gpt_neox_zero_of_skipped_steps() -> None:
    """The zero that stands for an interval in which every step was skipped is no loss."""
    line = NEOX.replace("3.250000E+00", "0.000000E+00").replace("skipped iterations:   0", "skipped iterations:  10")
    values = results(NEOX + "\n" + line.replace("120/", "130/") + "\n", gpt_neox.FAMILY)
    assert ("loss" in values[1], values[1]["skipped_iters"]) == (False, 10)


def test_gpt_neox_validation() -> None:
    """GPT-NeoX's validation has a layout of its own."""
    validation = (
        " validation results at iteration 120 | lm_loss value: 3.125000E+00 | lm_loss_ppl value: 2.275990E+01 | \n"
    )
    records = read(NEOX + "\n" + validation, gpt_neox.FAMILY)
    assert records[1].kind == "validation"
    assert records[1].values == {catalog.ITERATION: 120, catalog.VALIDATION_LOSS: 3.125}


def test_savanna() -> None:
    """Savanna's further keys: tokens per GPU become the job's, estimates are known and have no metric."""
    more = (
        "| batch size (tokens): 4.2M (8.4M @ 2048 GPUs) | tokens/s/gpu: 4096.0 | total_token/month @ 2048 GPUs: 21.7T "
        "| token index into training data: 512 | global flops throughput (flops / s): 1.00e+16 | lm_loss"
    )
    (values,) = results(WORLD + NEOX.replace("| lm_loss", more) + "\n", gpt_neox.FAMILY)
    assert values["tokens_per_sec"] == 4096.0 * 8


@pytest.mark.parametrize("line", [PRIMUS_2025, primus.FAMILY.example])
def test_primus(line: str) -> None:
    """Primus' lines of both years: of two values the one of this interval, of GPUs the whole job."""
    (values,) = results(WORLD + line + "\n", primus.FAMILY)
    assert values == {**COMMON, "throughput_tflops": 222.5, "tokens_per_sec": 4096.0 * 8}


def test_primus_prefix() -> None:
    """Primus' brackets are taken off: they tell when, which rank, and of how many, so that tokens are the job's."""
    records = read(PRIMUS_2025 + "\n" + PRIMUS_2025.replace("rank-7/8", "rank-6/8") + "\n", primus.FAMILY)
    run, train = records
    assert run.values == {catalog.WORLD_SIZE: 8}
    assert train.stamp_s is not None
    assert catalog.TOKENS_PER_SEC in train.values


def test_mindspeed() -> None:
    """MindSpeed's line: the share of attention has no metric, and a remark without a value does no harm."""
    remark = " current loss is not reliable, only for test |\n"
    (values,) = results(mindspeed.FAMILY.example + remark, mindspeed.FAMILY)
    assert values == {**COMMON, "throughput_tflops": 222.5}


def test_mindspeed_fsdp2() -> None:
    """The line of its FSDP2 trainer: percent become shares, GB of 1024³ bytes become bytes, memory is in the line."""
    (values,) = results(FSDP2 + "\n", mindspeed.FAMILY)
    absent = ("loss_scale", "skipped_iters")
    assert values == {
        **{name: value for name, value in COMMON.items() if name not in absent},
        "consumed_tokens": 7_864_320,
        "step_duration_ms": 2000.25,
        "tokens_per_sec": 32768.0,
        "mfu": 0.375,
        "memory_allocated_gb": 24.5,
        "memory_max_reserved": 30.25 * 1024**3,
    }


def test_mindspeed_fsdp2_nan() -> None:
    """That trainer prints 0 for a loss that is not finite."""
    (values,) = results(FSDP2.replace("3.250000E+00", "0.000000E+00") + "\n", mindspeed.FAMILY)
    assert math.isnan(values["loss"])


def test_swiss_ai() -> None:
    """swiss-ai's line: tokens have a magnitude, the time that is left has no metric."""
    line = megatron_forks.FAMILY.example.replace("eta: 4:56:00", "eta: 1 day, 2:03:04")
    (values,) = results(WORLD + line + "\n", megatron_forks.FAMILY)
    assert values == {
        **COMMON,
        "consumed_tokens": 7_864_000.0,
        "tokens_per_sec": 4096.0 * 8,
        "throughput_tflops": 222.5,
    }


def test_rioyokotalab() -> None:
    """Two values without a separator between them are read as far as they are known."""
    (values,) = results(RIO + "\n", megatron_forks.FAMILY)
    assert values == {**COMMON, "step_duration_ms": 2500.0, "throughput_tflops": 102.5}


@pytest.mark.parametrize("unit", ["24.5MODEL_TFLOP/s/GPU", "24.5TFLOP/s/GPU", "24.5 TFLOP/s/GPU"])
def test_step_time_of_megatron_bridge(unit: str) -> None:
    """Throughput that the line lacks is that of the line in front, for one line only; printed it is the printed one."""
    ahead = f"Step Time : 2.00s GPU utilization: {unit}\n"
    without = LINE.replace("throughput per GPU (TFLOP/s/GPU): 222.5 | ", "")
    later = without.replace("120/", "130/")
    values = results(ahead + without + "\n" + later + "\n" + ahead + LINE.replace("120/", "140/"), megatron.FAMILY)
    assert [line.get("throughput_tflops") for line in values] == [24.5, None, 222.5]


def test_step_time_alone() -> None:
    """Without a training line it is recognized and nothing more."""
    log = reader()
    assert log.feed(b"Step Time : 2.00s GPU utilization: 24.5TFLOP/s/GPU\n") + log.close() == []
    assert log.counts == LineCounts(recognized=1)


def test_reinforcement_learning() -> None:
    """Of the many rates of the reinforcement learning loop the job's is the metric; the others are known."""
    rates = (
        " toks/s: 32768 | toks/s/gpu: 4096 | compute_toks/s: 36864 | compute_toks/s/gpu: 4608 | actual_toks/s: 24576 | "
        "actual_toks/s/gpu: 3072 | packing_eff: 75.0% | avg_seq_len: 2048.5 |"
    )
    line = LINE.replace("| elapsed", "| consumed bins:           40 | elapsed") + rates
    (values,) = results(line + "\n", megatron.FAMILY)
    assert values["tokens_per_sec"] == 32768


def test_further_losses() -> None:
    """Losses beside the language model's are known, and none is taken for it."""
    losses = (
        "lm loss: 3.250000E+00 | load_balancing_loss: 1.250000E+00 | seq_load_balancing_loss: 1.125000E+00 | "
        "global_load_balancing_loss: 1.062500E+00 | z_loss: 2.500000E-03 | mtp_1 loss: 3.500000E+00 | "
        "mtp_7 loss: 3.750000E+00 | indexer loss: 5.000000E-01 | max attention logit: 12.500 | loss scale"
    )
    (values,) = results(LINE.replace("lm loss: 3.250000E+00 | loss scale", losses) + "\n", megatron.FAMILY)
    assert values == {**COMMON, "throughput_tflops": 222.5}
