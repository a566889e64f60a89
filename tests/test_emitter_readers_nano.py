"""The lines of nanotron and nanoGPT."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import nanogpt, nanotron, reader
from emitter.records import LineCounts, Record

TRON = nanotron.FAMILY.example + "\n"
GPT = nanogpt.FAMILY.example + "\n"


def read(text: str, family: str) -> tuple[list[Record], LineCounts]:
    """Records of a log that is found to be of a family, with all of its keys read, and what became of its lines."""
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert (log.summary.format, log.summary.unread) == (family, ())
    return records, log.counts


def results(text: str, family: str) -> list[dict[str, Any]]:
    """Values of the training results by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text, family)[0]
        if record.kind == "train"
    ]


def test_nanotron() -> None:
    """The line of nanotron: magnitudes are numbers, and of two throughputs the model's counts."""
    memory = (
        " | cuda_memory_allocated: 12.5B | cuda_max_memory_reserved: 25.5B | hd_total_memory_tb: 1.2T | "
        "hd_used_memory_tb: 900B | hd_free_memory_tb: 300B\n"
    )
    line = TRON.replace("lm_loss", "hardware_tflops_per_gpu: 231 | z_loss: 0.01 | lm_loss").replace("\n", memory)
    (values,) = results(line, "nanotron")
    assert values == {
        "iteration": 120,
        "target_iteration": 9000,
        "consumed_tokens": 7.86e6,
        "step_duration_ms": 2050.0,
        "tokens_per_sec": 32_800.0,
        "global_batch_size": 32,
        "loss": 3.25,
        "learning_rate": 1.5e-4,
        "throughput_tflops": 222,
        "grad_norm": 0.875,
        "memory_max_reserved": 25.5e9,
    }


def test_older_nanotron() -> None:
    """Years ago numbers were padded and had their digits, and the duration another name."""
    line = (
        "[default0]:iteration: 7 / 20 | consumed_samples:          224 | elapsed_time_per_iteration_ms: 2050.5 | "
        "tokens_per_sec: 3.280000E+04 | tokens_per_sec_per_gpu: 4.100000E+03 | global_batch_size:    32 | "
        "lm_loss: 3.250000E+00 | lr: 1.500E-04 | model_tflops_per_gpu: 222.00 | hardware_tflops_per_gpu: 231.00\n"
    )
    assert results(line, "nanotron") == [
        {
            "iteration": 7,
            "target_iteration": 20,
            "consumed_samples": 224,
            "step_duration_ms": 2050.5,
            "tokens_per_sec": 32_800.0,
            "global_batch_size": 32,
            "loss": 3.25,
            "learning_rate": 1.5e-4,
            "throughput_tflops": 222.0,
        }
    ]


@pytest.mark.parametrize(
    ("printed", "expected"),
    [("634K", 634_000), ("7.86M", 7.86e6), ("1.2E", 1.2e18), ("0.000301", 0.000301), ("3e-05", 3e-5), ("12", 12)],
)
def test_human_numbers(printed: str, expected: float) -> None:
    """All of nanotron's magnitudes, and none."""
    assert nanotron.human(printed) == pytest.approx(expected)


def test_human_infinity() -> None:
    """An infinite number carries the largest magnitude, and a NaN none."""
    assert nanotron.human("infE") == math.inf
    assert math.isnan(results(TRON.replace("lm_loss: 3.25", "lm_loss: nan"), "nanotron")[0]["loss"])


def test_time_of_nanotron() -> None:
    """Its stamp has the month first: the records are an hour and ten seconds apart."""
    later = TRON.replace("05/06/2031 07:08:09", "05/06/2031 08:08:19").replace("120 /", "130 /")
    first, second = read(TRON + later, "nanotron")[0]
    assert first.stamp_s is not None
    assert second.stamp_s == first.stamp_s + 3610


def test_nanogpt() -> None:
    """The line of nanoGPT: every field."""
    assert results(GPT, "nanogpt") == [{"iteration": 120, "loss": 3.25, "step_duration_ms": 2000.25, "mfu": 0.375}]


def test_dead_nanogpt() -> None:
    """A loss that is NaN is one; the share of -100 % that each process begins with is none."""
    text = (
        GPT.replace("37.50", "-100.00") + GPT.replace("120", "130") + GPT.replace("120", "140").replace("3.2500", "nan")
    )
    again = GPT.replace("120", "10").replace("37.50", "-100.00")
    values = results(text + again, "nanogpt")
    assert [one.get("mfu") for one in values] == [None, 0.375, 0.375, None]
    assert math.isnan(values[2]["loss"])


def test_evaluation_of_nanogpt() -> None:
    """Its evaluation tells two losses, of which the second one is the validation's."""
    records, counts = read(GPT + "step 125: train loss 3.1250, val loss 3.3750\nsaving checkpoint to out\n", "nanogpt")
    assert [record.kind for record in records] == ["train", "validation"]
    assert records[1].values == {catalog.ITERATION: 125, catalog.VALIDATION_LOSS: 3.375}
    assert counts == LineCounts(records=2, reasons={"unknown": 1})


def test_cut_line_of_nanogpt() -> None:
    """A last line without its percent sign is cut."""
    assert read(GPT + "iter 130: loss 3.2500, time 20", "nanogpt")[1] == LineCounts(records=1, reasons={"cut": 1})
