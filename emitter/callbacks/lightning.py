"""PyTorch Lightning's Trainer, told to a run.

run = TrainingRun("my-run", to="scrape:9464")
trainer = Trainer(callbacks=[TrainingRunCallback(run, samples_per_step=512)])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any

from .. import catalog
from ..loop import Evaluation, TrainingRun
from .guard import guarded

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback


class TrainingRunCallback(Callback):
    """Steps, evaluations, checkpoints and the end of a fit, also by an exception, as a run's metrics and spans.

    `tokens_per_step` and `samples_per_step` count all ranks and all accumulated batches together. `validation_loss` and
    `grad_norm` are the names under which the module logs them.

    The run ends with the fit. Lightning handles SIGTERM itself, so the run leaves it alone from then on. A checkpoint
    that is written in the background counts as saved when it is handed over. Start several ranks with torchrun or
    srun: until Lightning's own launcher has launched them, each takes itself for the only one; then rank 0 exports.
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        tokens_per_step: float | None = None,
        samples_per_step: float | None = None,
        validation_loss: str = "val_loss",
        grad_norm: str = "grad_2.0_norm_total",
    ) -> None:
        self._run = run
        self._tokens_per_step = tokens_per_step
        self._samples_per_step = samples_per_step
        self._validation_loss = validation_loss
        self._grad_norm = grad_norm
        self._step = 0
        self._batches = 0
        """Batches since the last step of the optimizer."""
        self._loss: Any = None
        """Sum of what these batches reported."""
        self._learning_rate: float | None = None
        self._evaluating = ExitStack()
        self._evaluation: Evaluation | None = None
        self._saving: Callable[..., None] | None = None

    @guarded
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The ranks are known, nothing is loaded yet."""
        if stage != "fit":
            return
        run = self._run
        if trainer.global_rank > 0 and run.telemetry.place.world_size == 1:
            run.telemetry.shutdown()  # launched by Lightning, this rank took itself for the only one
        run.leave_sigterm()  # else SIGTERM would kill before Lightning has saved what it wants to
        self._measure_saving(trainer)

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything is loaded, a checkpoint too; no batch was seen."""
        run, step = self._run, trainer.global_step
        self._step = step
        run.record(catalog.WORLD_SIZE, trainer.world_size)
        run.record(catalog.GPUS_PER_NODE, trainer.num_devices)
        if step:
            run.resume(
                step,
                consumed_tokens=step * (self._tokens_per_step or 0),
                consumed_samples=step * (self._samples_per_step or 0),
            )
        steps = trainer.estimated_stepping_batches
        if math.isfinite(steps):
            run.record(catalog.TARGET_ITERATION, steps)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The learning rate is that of this step; afterwards the schedule has moved on."""
        self._learning_rate = optimizer.param_groups[0]["lr"]

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch is done; a step, if the optimizer moved."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()
        self._batches += 1
        if trainer.global_step == self._step:
            return
        loss, batches = self._loss, self._batches
        self._step, self._loss, self._batches = trainer.global_step, None, 0
        # Lightning has divided each loss by the batches of a full step; the last step of an epoch may have fewer.
        if loss is not None and batches != trainer.accumulate_grad_batches:
            loss = loss * (trainer.accumulate_grad_batches / batches)
        self._run.step(
            loss,
            tokens=self._tokens_per_step,
            samples=self._samples_per_step,
            grad_norm=trainer.callback_metrics.get(self._grad_norm),
            learning_rate=self._learning_rate,
            iteration=self._step,
        )

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation begins, or the sanity check, which is part of the start-up."""
        if not trainer.sanity_checking:
            self._evaluation = self._evaluating.enter_context(self._run.evaluation())

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """An evaluation is done."""
        if self._evaluation is not None:
            self._evaluation.loss = trainer.callback_metrics.get(self._validation_loss)
            self._evaluation = None
        self._evaluating.close()

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The fit is over, and so is what was under way."""
        self._evaluating.__exit__(type(exception), exception, exception.__traceback__)
        self._end(trainer)

    @guarded
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The fit is over; its last checkpoint is saved."""
        self._end(trainer)

    def _measure_saving(self, trainer: Any) -> None:
        """Put the run around `trainer.save_checkpoint`, which all who save call: no hook says when it is done."""
        save = trainer.save_checkpoint

        @wraps(save)
        def saving(*arguments: Any, **options: Any) -> None:
            with self._run.checkpoint(trainer.global_step):
                save(*arguments, **options)

        self._saving = trainer.save_checkpoint = saving

    def _end(self, trainer: Any) -> None:
        if vars(trainer).get("save_checkpoint") is self._saving:
            vars(trainer).pop("save_checkpoint", None)
        self._run.end()
