"""A real PyTorch Lightning Trainer with a tiny model on the CPU, and what its run exports."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from points import Exported, Points, StartRun
from torch.utils.data import DataLoader, TensorDataset

from emitter.callbacks.lightning import TrainingRunCallback
from emitter.loop import TrainingRun

BATCHES = 6


class Model(LightningModule):
    """A line through the origin. Its loss is the number of the batch, its validation loss 42."""

    def __init__(self, *, at_batch: Callable[[int], object] = lambda batch: None, run: TrainingRun | None = None):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.at_batch = at_batch
        self.run = run

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """A loss whose value is known and whose gradient exists."""
        self.at_batch(batch_idx)
        self.log("grad_2.0_norm_total", torch.tensor(0.5))
        return self.line(batch[0]).mean() * 0 + batch_idx

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        """An evaluation that exports what is the case in its middle."""
        self.log("val_loss", torch.tensor(42.0))
        if self.run is not None:
            self.run.telemetry.flush()

    def configure_optimizers(self) -> dict:
        """A learning rate that halves at each step."""
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def data(batches: int = BATCHES) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(2 * batches, 1)), batch_size=2)


def trainer(
    folder: Path, run: TrainingRun, *callbacks: object, tokens_per_step: float | None = None, **options: Any
) -> Trainer:
    ours = TrainingRunCallback(run, tokens_per_step=tokens_per_step, samples_per_step=2)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    checkpoints = {} if callbacks else {"enable_checkpointing": False}
    settings = {"max_epochs": 1, "devices": 1, "default_root_dir": folder, **quiet, **checkpoints, **options}
    return Trainer(callbacks=[ours, *callbacks], **settings)


def test_each_step_of_the_optimizer_is_a_step(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Loss, gradient norm, learning rate of the step, consumed samples and tokens, and the target are exported."""
    run = start_run(world_size=8)
    trainer(tmp_path, run, tokens_per_step=100).fit(Model(), data())
    last = exported()[-1]
    assert last["training.iteration"] == last["training.target_iteration"] == BATCHES
    assert last["training.step_duration_ms"] == BATCHES - 1  # the first step is start-up
    assert last["training.loss"] == BATCHES - 1
    assert last["training.grad_norm"] == 0.5
    assert last["training.learning_rate"] == 0.5 ** (BATCHES - 1)
    assert last["training.consumed_samples"] == 2 * BATCHES
    assert last["training.consumed_tokens"] == 100 * BATCHES
    assert last["training.tokens_per_sec"] > 0
    assert last["run.world_size"] == 1
    assert last["run.phase.ended"] == 1


def test_accumulated_batches_make_one_step(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """With gradient accumulation the loss is the mean over a step's batches, also of the short last step."""
    losses: list[Points] = []
    run = start_run()

    def look(batch: int) -> None:
        if batch == 4:
            run.telemetry.flush()

    trainer(tmp_path, run, accumulate_grad_batches=4).fit(Model(at_batch=look), data(6))
    losses = exported()
    assert losses[0]["training.iteration"] == 1
    assert losses[0]["training.loss"] == (0 + 1 + 2 + 3) / 4
    assert losses[-1]["training.iteration"] == losses[-1]["training.target_iteration"] == 2
    assert losses[-1]["training.loss"] == (4 + 5) / 2


def test_an_evaluation_is_a_phase(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """While it validates the run evaluates, its loss is exported; the sanity check belongs to the start-up."""
    run = start_run()
    trainer(tmp_path, run, val_check_interval=3, num_sanity_val_steps=1).fit(Model(run=run), data(), data(1))
    sanity, first, second, *_, last = exported()
    assert sanity["run.phase.startup"] == 1
    assert "training.validation_loss" not in sanity
    assert first["run.phase.evaluate"] == second["run.phase.evaluate"] == 1
    assert last["training.validation_loss"] == 42
    assert last["evaluation.duration"] == 2
    assert last["run.time.evaluate"] > 0


def test_a_checkpoint_is_a_phase(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Whoever saves through the Trainer is measured; the last one's iteration is known."""
    run = start_run()
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1)
    trainer(tmp_path, run, saver).fit(Model(), data())
    last = exported()[-1]
    assert last["checkpoint.save_duration"] == BATCHES / 2 == len(list(tmp_path.glob("*.ckpt")))
    assert last["checkpoint.last_iteration"] == BATCHES
    assert last["run.time.checkpoint"] > 0
    assert last["checkpoint.failures"] == 0


def test_a_checkpoint_that_fails_is_counted(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """An error while saving reaches the user as it is, and is a failed checkpoint of a run that has ended."""
    run = start_run()
    (tmp_path / "file").touch()
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
    fit = trainer(tmp_path, run, saver)
    monkey = Model(at_batch=lambda batch: setattr(saver, "dirpath", str(tmp_path / "file" / "below")))
    with pytest.raises(OSError):  # noqa: PT011 # which one is the file system's choice
        fit.fit(monkey, data())
    last = exported()[-1]
    assert last["checkpoint.failures"] == 1
    assert "checkpoint.last_iteration" not in last
    assert last["run.phase.ended"] == 1


def test_a_fit_goes_on_from_a_checkpoint(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """A resumed run counts on from the checkpoint's iteration and consumption, as a second attempt."""
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=4, filename="saved")
    trainer(tmp_path, start_run(), saver, max_steps=4).fit(Model(), data())
    exported()
    seen: list[Points] = []
    run = start_run(attempt=1)

    def look(batch: int) -> None:
        if not seen:
            run.telemetry.flush()
            seen.extend(exported())

    trainer(tmp_path, run).fit(Model(at_batch=look), data(), ckpt_path=tmp_path / "saved.ckpt")
    last = exported()[-1]
    assert seen[0]["training.iteration"] == seen[0]["checkpoint.last_iteration"] == 4
    assert last["training.iteration"] == last["training.target_iteration"] == BATCHES
    assert last["training.consumed_samples"] == 2 * BATCHES
    assert last["run.attempt"] == 1
    assert last["run.time.restart"] > 0


def test_an_exception_ends_the_run(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """An error in a batch reaches the user as it is, and the run has ended."""

    def fail(batch: int) -> None:
        if batch == 2:
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        trainer(tmp_path, start_run()).fit(Model(at_batch=fail), data())
    last = exported()[-1]
    assert last["training.iteration"] == 2
    assert last["run.phase.ended"] == 1


def test_an_exception_in_an_evaluation_is_no_result(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """An evaluation that did not come to its end has no duration and no loss."""
    run = start_run()
    model = Model()
    model.validation_step = lambda batch, batch_idx: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, run, num_sanity_val_steps=0).fit(model, data(), data(1))
    last = exported()[-1]
    assert "evaluation.duration" not in last
    assert last["run.phase.ended"] == 1


def test_sigterm_is_left_to_lightning(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Lightning stops after the batch, as it does without us, and the run's end is exported."""

    def terminate(batch: int) -> None:
        if batch == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    run = start_run()
    with pytest.raises(SystemExit):
        trainer(tmp_path, run).fit(Model(at_batch=terminate), data())
    last = exported()[-1]
    assert last["training.iteration"] == 3
    assert last["run.phase.ended"] == 1


def test_a_rank_that_does_not_export_trains(
    start_run: StartRun, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where telemetry is off, everything is as without a run."""
    monkeypatch.setenv("MEGATRON_OTEL_ENABLED", "0")
    run = start_run()
    saver = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
    fit = trainer(tmp_path, run, saver)
    fit.fit(Model(), data(), data(1))
    assert run.meter is None
    assert fit.global_step == BATCHES
    assert exported() == []


def test_what_fails_in_a_callback_stays_there(
    start_run: StartRun, exported: Exported, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that fails is logged once, however often, and the fit goes on."""
    run = start_run()
    fit = trainer(tmp_path, run)
    run.step = None  # type: ignore[assignment,method-assign]
    fit.fit(Model(), data())
    assert fit.global_step == BATCHES
    assert len([record for record in caplog.records if "on_train_batch_end" in record.getMessage()]) == 1
    assert exported()[-1]["run.phase.ended"] == 1
