"""Dictionaries of Hugging Face's Trainer, TRL, LLaMA-Factory and ms-swift, and ms-swift's line on Megatron-LM."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import hugging_face, ms_swift, reader
from emitter.records import LineCounts, Record

SWIFT = hugging_face.FAMILY.example + "\n"
LINE = ms_swift.FAMILY.example + "\n"


def read(text: str, family: str | None = "hugging-face") -> tuple[list[Record], LineCounts]:
    """Records of a log that is found to be of a family, with all of its keys read, and what became of its lines."""
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert (log.summary.format, log.summary.unread) == (family, ())
    return records, log.counts


def results(text: str, kind: str = "train", family: str = "hugging-face") -> list[dict[str, Any]]:
    """Values by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text, family)[0]
        if record.kind == kind
    ]


def bar(step: int, elapsed: str = "00:59", total: int = 300) -> str:
    """A progress bar as the Trainer has it, which overwrites itself."""
    return f"\r  3%|▎         | {step}/{total} [{elapsed}<28:44,  5.95s/it]"


def report(loss: str = "3.25", grad_norm: str = "0.875", more: str = "") -> str:
    """The Trainer's own dictionary, in front of which the bar is cleared."""
    return f"\r{' ' * 60}\r{{'loss': {loss}, 'grad_norm': {grad_norm}, 'learning_rate': 5e-05, 'epoch': 0.01{more}}}\n"


def test_ms_swift() -> None:
    """A dictionary that tells where it is: every field, iteration and target out of one value."""
    assert results(SWIFT) == [
        {
            "iteration": 120,
            "target_iteration": 9000,
            "loss": 3.25,
            "grad_norm": 0.875,
            "learning_rate": 1.5e-4,
            "memory_max_reserved": 24.5 * 1024**3,
        }
    ]


def test_megatron_dictionary() -> None:
    """ms-swift on Megatron-LM since 2026: the iteration has another name, the speed is the inverse."""
    line = SWIFT.replace("global_step/max_steps", "iteration").replace("train_speed(iter/s)", "train_speed(s/it)")
    assert results(line) == results(SWIFT)


def test_json_lines() -> None:
    """LLaMA-Factory's file of JSON lines: every field that is a metric."""
    line = {
        "current_steps": 120,
        "total_steps": 9000,
        "loss": 3.25,
        "lr": 1.5e-4,
        "epoch": 0.5,
        "percentage": 1.33,
        "elapsed_time": "0:04:00",
        "remaining_time": "4:56:00",
        "throughput": 4096.5,
        "total_tokens": 983_040,
        "vram_allocated": 20.5,
        "vram_reserved": 24.5,
    }
    assert results(json.dumps(line) + "\n") == [
        {
            "iteration": 120,
            "target_iteration": 9000,
            "loss": 3.25,
            "learning_rate": 1.5e-4,
            "consumed_tokens": 983_040,
            "memory_allocated_gb": 20.5,
            "memory_max_reserved": 24.5 * 1024**3,
        }
    ]


def test_numbers_in_quotes() -> None:
    """Newer Trainers print numbers as strings, and numbers they are."""
    quoted = (
        "{'loss': '3.25', 'grad_norm': '0.875', 'learning_rate': '5e-05', 'num_tokens': '4096.0', 'epoch': '0.5'}\n"
    )
    assert results(bar(10) + "\n" + quoted) == [
        {
            "iteration": 10,
            "target_iteration": 300,
            "loss": 3.25,
            "grad_norm": 0.875,
            "learning_rate": 5e-5,
            "consumed_tokens": 4096,
        }
    ]


def test_the_bar_tells_the_iteration() -> None:
    """The Trainer's dictionary has no iteration: it has that of the bar before it, and the time between them."""
    text = bar(10, "01:00") + report() + bar(10, "01:00") + bar(20, "02:00") + report("3.0") + bar(21, "02:06")
    first, second = read(text)[0]
    assert (first.values[catalog.ITERATION], second.values[catalog.ITERATION]) == (10, 20)
    assert catalog.STEP_DURATION not in first.values
    assert second.values[catalog.STEP_DURATION] == 6000.0
    assert second.length_s == 60.0


def test_dictionary_behind_the_bar() -> None:
    """Where the bar is not cleared, it and the dictionary share a line."""
    text = bar(10, "01:00") + report().split("\r")[2] + bar(20, "02:00") + report("3.0").split("\r")[2]
    assert [(one["iteration"], one.get("step_duration_ms")) for one in results(text)] == [(10, None), (20, 6000.0)]


def test_without_a_bar() -> None:
    """Without a bar a dictionary cannot be placed: it is skipped with that reason and named; no result is invented."""
    dictionary = report().split("\r")[2]
    assert read(dictionary * 2) == ([], LineCounts(reasons={"unplaced": 2}))
    log = reader()
    log.feed(dictionary.encode())
    log.close()
    assert log.summary.unlike == dictionary.strip()[:200]


def test_other_bars() -> None:
    """A bar with something in front is none of training."""
    text = "Loading checkpoint shards:  50%|███  | 2/4 [00:05<00:05,  2.50s/it]\n" + report().split("\r")[2]
    assert read(text) == ([], LineCounts(reasons={"unplaced": 1, "unknown": 1}))


@pytest.mark.parametrize(
    ("loss", "grad_norm", "dead"),
    [("0.0", "nan", True), ("nan", "nan", True), ("0.0", "0.875", False), ("3.25", "nan", False)],
)
def test_dead_run(loss: str, grad_norm: str, dead: bool) -> None:
    """The Trainer replaces a loss that is not finite: 0 with a gradient norm that is NaN is a NaN."""
    (values,) = results(bar(10) + report(loss, grad_norm))
    assert math.isnan(values["loss"]) == dead


def test_coarse_clock() -> None:
    """A clock of whole seconds is asked over ten of them; until then steps have no duration."""
    steps = [(1, "10s"), (2, "13s"), (3, "17s"), (4, "22s"), (5, "1m 2s")]
    text = "".join(SWIFT.replace("120/", f"{step}/").replace("4m 0s', 'rem", f"{at}', 'rem") for step, at in steps)
    records = read(text)[0]
    assert [record.values.get(catalog.STEP_DURATION) for record in records] == [None, None, None, 4000.0, 40_000.0]
    assert [record.length_s for record in records] == [None, None, None, 12.0, 40.0]


def test_evaluation() -> None:
    """The dictionary of an evaluation is validation, with the iteration if it has one."""
    text = bar(10) + report() + "{'eval_loss': 3.125, 'eval_runtime': 2.5, 'epoch': 0.01}\n"
    assert results(text, "validation") == [{"validation_loss": 3.125}]
    evaluated = "{'eval_loss': 3.125, 'epoch': 0.5, 'global_step/max_steps': '120/9000'}\n"
    assert results(SWIFT + evaluated, "validation") == [{"iteration": 120, "validation_loss": 3.125}]


def test_life_of_a_run() -> None:
    """The Trainer's banner starts a process and tells its sizes; the summary of all of training ends it."""
    banner = (
        "[INFO|trainer.py:2134] 2031-05-06 07:08:09,321 >> ***** Running training *****\n"
        "  Num examples = 10,000\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        "  Total optimization steps = 3,000\n"
        "  Continuing training from global step 500\n"
    )
    summary = "{'train_runtime': 123.5, 'train_loss': 3.5, 'epoch': 3.0}\n"
    records, counts = read(banner + bar(510, total=3000) + report() + summary)
    assert [record.kind for record in records] == ["start", "run", "run", "resume", "train", "end"]
    assert records[1].values == {catalog.GLOBAL_BATCH_SIZE: 64}
    assert records[2].values == {catalog.TARGET_ITERATION: 3000}
    assert records[3].values == {catalog.CHECKPOINT_LAST_ITERATION: 500}
    assert counts == LineCounts(records=2, recognized=5, reasons={"unknown": 1, "empty": 2})


def test_next_attempt() -> None:
    """A bar that goes on from an earlier iteration is that of another process."""
    text = bar(20) + report("3.0") + bar(10) + report()
    assert [record.attempt for record in read(text)[0]] == [0, 1]


def test_other_dictionaries() -> None:
    """A dictionary of settings is no training line, even where it names a loss."""
    text = "{'loss': 'cross_entropy', 'learning_rate': 5e-05}\n{'loss': 1.0, 'weight': 2}\n{'loss_scale': 0}\n"
    assert read(text, None) == ([], LineCounts(reasons={"garbled": 1, "unknown": 2}))


def test_ms_swift_on_megatron() -> None:
    """ms-swift's line on Megatron-LM until 2026-03: memory is reserved, times of the whole run have no metric."""
    assert results(LINE, family="ms-swift") == [
        {
            "iteration": 120,
            "target_iteration": 9000,
            "consumed_samples": 3840,
            "step_duration_ms": 2000.0,
            "memory_max_reserved": 24.5 * 1024**3,
            "learning_rate": 1.5e-4,
            "global_batch_size": 32,
            "loss": 3.25,
            "loss_scale": 1.0,
            "grad_norm": 0.875,
            "skipped_iters": 0,
        }
    ]


@pytest.mark.parametrize("loss", ["-3.250000E-01", "NAN", "0.000000E+00"])
def test_ms_swift_prints_every_loss(loss: str) -> None:
    """Every loss is printed there, so the printed one counts and an absent one is absent."""
    (values,) = results(LINE.replace("3.250000E+00", loss), family="ms-swift")
    assert values["loss"] == pytest.approx(float(loss), nan_ok=True)
    assert "loss" not in results(LINE.replace("| loss:", "| z_loss:"), family="ms-swift")[0]
