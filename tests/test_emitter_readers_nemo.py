"""NeMo's lines: what the printer of NeMo 2.0 says, and the progress bars of NeMo 1 with their three digits."""

from __future__ import annotations

import math
from typing import Any

import pytest

from emitter import catalog
from emitter.readers import nemo1, nemo2, reader
from emitter.records import LineCounts, Record

PRINTED = nemo2.FAMILY.example + "\n"
BAR = nemo1.FAMILY.example
PREFIXES = [
    "(pretraining, pid=4112) ",
    "run-demo-x/0 ",
    "pretrain-1/0 [default0]:",
]


def read(text: str) -> tuple[list[Record], LineCounts, str | None]:
    """Records of a log with all of its keys read, what became of its lines, and the family."""
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert log.summary.unread == ()
    return records, log.counts, log.summary.format


def results(text: str, kind: str = "train") -> list[dict[str, Any]]:
    """Values by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text)[0]
        if record.kind == kind
    ]


def printed(step: int, more: str = "") -> str:
    """A line of the printer of NeMo 2.0."""
    return PRINTED.replace("global_step: 119", f"global_step: {step}").rstrip() + more + "\n"


def bar(step: str, loss: str = "3.250", more: str = "") -> str:
    """A state of a progress bar."""
    shown = BAR.replace("global_step=1.2e+3", f"global_step={step}").replace("loss=3.250", f"loss={loss}")
    return shown.removesuffix("]") + more + "]\r"


def test_printer() -> None:
    """The printer's line: every field, the iteration over all epochs, seconds as milliseconds."""
    more = (
        " | grad_norm: 0.875 | TFLOPS_per_GPU: 222.5 | memory/peak_allocated_mem: 24.5 | memory/peak_reserved_mem: 30"
    )
    assert results(printed(119, more)) == [
        {
            "iteration": 119,
            "learning_rate": 1.5e-5,
            "global_batch_size": 512,
            "loss": 3.25,
            "step_duration_ms": 2500.0,
            "consumed_samples": 61440,
            "grad_norm": 0.875,
            "throughput_tflops": 222.5,
            "memory_allocated_gb": pytest.approx(24.5e9 / 1024**3),
            "memory_max_reserved": 30e9,
        }
    ]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes(prefix: str) -> None:
    """What Ray, NeMo-Run and torchrun put in front is no part of it."""
    records, counts, family = read(prefix + printed(1) + prefix + printed(2))
    assert [record.values[catalog.ITERATION] for record in records] == [1, 2]
    assert (counts, family) == (LineCounts(records=2), "nemo2")


def test_epochs() -> None:
    """The number that starts again in each epoch is not the iteration: a new epoch is no new attempt."""
    following = printed(120).replace("epoch 0, iteration 19/99", "epoch 1, iteration 0/99")
    records = read(printed(119) + following)[0]
    assert [(record.attempt, record.values[catalog.ITERATION]) for record in records] == [(0, 119), (0, 120)]


def test_restart() -> None:
    """Steps that are done again are the next attempt, and its length is that of its steps."""
    records = read(printed(14) + printed(15) + printed(10) + printed(11))[0]
    assert [record.attempt for record in records] == [0, 0, 1, 1]
    assert [record.length_s for record in records] == [None, 2.5, None, 2.5]


def test_columns_in_another_order() -> None:
    """The columns have no order, and one that is absent is absent."""
    line = "Training epoch 0, iteration 9/19 | global_step: 9 | lr: 5e-06 | reduced_train_loss: nan\n"
    (values,) = results(line)
    assert math.isnan(values.pop("loss"))
    assert values == {"iteration": 9, "learning_rate": 5e-6}


def test_validation_loss_stays() -> None:
    """A validation loss stays in the lines until the next one: it is reported when it changes."""
    text = (
        printed(1) + printed(2, " | val_loss: 3.5") + printed(3, " | val_loss: 3.5") + printed(4, " | val_loss: 3.25")
    )
    assert results(text, "validation") == [
        {"iteration": 2, "validation_loss": 3.5},
        {"iteration": 4, "validation_loss": 3.25},
    ]
    assert all("validation_loss" not in values for values in results(text))


def test_cut_line() -> None:
    """The last line may be cut inside its last number, so it does not count without an end."""
    assert read(printed(1) + printed(2).rstrip()) == (
        read(printed(1))[0],
        LineCounts(records=1, reasons={"cut": 1}),
        "nemo2",
    )


def test_what_follows_is_not_swallowed() -> None:
    """A line behind one without an end mark is no part of it."""
    for other in ("[NeMo I 2031-05-06 07:08:09 utils:1] hello", "node7: up", "", "> building", " | what: ever you say"):
        assert read(printed(1) + other + "\n")[1].records == 1


def test_life_of_a_run() -> None:
    """The start tells the world size; checkpoints are complete when they are; evaluation and end are phases."""
    text = (
        "All distributed processes registered. Starting with 16 processes\n"
        + printed(9)
        + "[NeMo I 2031-05-06 07:08:09 model_checkpoint:497] Scheduled async checkpoint save for /x/step=9-last.ckpt\n"
        + "[NeMo I 2031-05-06 07:08:19 model_checkpoint:522] Async checkpoint save for step 10 (/x/step=9-last.ckpt) "
        "finalized successfully.\n"
        + "Validation: iteration 1/50\n"
        + printed(10)
        + "`Trainer.fit` stopped: `max_steps=10` reached.\n"
    )
    records, counts, _ = read(text)
    kinds = [(record.kind, record.phase) for record in records]
    assert kinds == [
        ("start", "startup"),
        ("run", None),
        ("train", "train"),
        ("checkpoint", "train"),
        ("phase", "evaluate"),
        ("train", "train"),
        ("end", "ended"),
    ]
    assert records[1].values == {catalog.WORLD_SIZE: 16}
    assert records[3].values == {catalog.CHECKPOINT_LAST_ITERATION: 10}
    assert counts == LineCounts(records=3, recognized=4)


def test_bar() -> None:
    """A progress bar: every field; its own count and its smoothed loss are no values."""
    (values,) = results(bar("40.00", more=", loss=3.3, v_num=ab12-3"))
    assert values == {"iteration": 40, "loss": 3.25, "consumed_samples": 640_000, "step_duration_ms": 2500.0}


def test_three_digits() -> None:
    """Bars in a row with the same rounded step are of one attempt; those that say nothing new say nothing."""
    text = bar("3.1e+4", "2.510") + bar("3.1e+4", "2.520") + bar("3.1e+4", "2.520") + bar("3.2e+4", "2.500")
    records, counts, family = read(text)
    assert [(record.attempt, record.values[catalog.ITERATION], record.values[catalog.LOSS]) for record in records] == [
        (0, 31_000, 2.51),
        (0, 31_000, 2.52),
        (0, 32_000, 2.5),
    ]
    assert [record.length_s for record in records] == [None, None, 2500.0]
    assert (counts, family) == (LineCounts(records=3, recognized=1), "nemo1")


def test_bars_of_a_new_attempt() -> None:
    """A rounded step that is lower than before is the next attempt."""
    assert [record.attempt for record in read(bar("3.1e+4") + bar("2.9e+4"))[0]] == [0, 1]


def test_overwritten_bar() -> None:
    """What was left of a longer bar behind a shorter one does no harm, and neither do further colons."""
    text = (
        bar("2e+3")
        .replace("Epoch 0:", "Epoch 0: :")
        .replace("]\r", "]dation DataLoader 0: : 51it [00:20,  2.53it/s]\n")
    )
    assert results(text)[0]["iteration"] == 2000


def test_bar_without_its_end() -> None:
    """A bar that a terminal cut off is not read: its last number may be half of one."""
    assert read(bar("40.00").split("00, consumed")[0] + "\n")[:2] == ([], LineCounts(reasons={"cut": 1}))


def test_nan_on_a_bar() -> None:
    """Bars print a NaN as `nan.0`, and it is one."""
    (values,) = results(bar("40.00", "nan.0"))
    assert math.isnan(values["loss"])
