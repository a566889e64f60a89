"""Hugging Face's Trainer, told to a run.

run = TrainingRun("my-run", to="scrape:9464")
trainer = Trainer(model, arguments, callbacks=[TrainingRunCallback(run)], …)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from .. import catalog
from ..instruments import record_training_metrics
from ..loop import TrainingRun
from ..spans import managed_span
from .guard import guarded

_SPANS = {"evaluate": "megatron.evaluate", "checkpoint": "megatron.save_checkpoint"}
"""Span of a phase; the group bears the phase's name."""


class TrainingRunCallback(TrainerCallback):
    """Steps, evaluations, checkpoints and the end of a training, as a run's metrics and spans.

    Every step counts as one; loss, gradient norm and learning rate are what the Trainer logs every `logging_steps`.
    Tokens are counted by the Trainer with `include_num_input_tokens_seen`, else `tokens_per_step` says how many all
    ranks and all accumulated batches have together. `validation_loss` is the name of a metric of the evaluation.

    A loss that is NaN shows only with `logging_nan_inf_filter=False`: the Trainer replaces it by default. The run ends
    with the training. The Trainer does not tell of exceptions: then the run ends with the process, or with its own
    `with` block around `trainer.train()`.
    """

    def __init__(
        self, run: TrainingRun, *, tokens_per_step: float | None = None, validation_loss: str = "eval_loss"
    ) -> None:
        self._run = run
        self._tokens_per_step = tokens_per_step
        self._validation_loss = validation_loss
        self._tokens_seen = 0
        self._under_way = ExitStack()
        self._seconds: Callable[[], float] | None = None
        """How long the evaluation or checkpoint that is under way has lasted."""

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Everything is loaded, a checkpoint too; no batch was seen."""
        run = self._run
        run.record(catalog.WORLD_SIZE, args.world_size)
        run.record(catalog.TARGET_ITERATION, state.max_steps)
        self._tokens_seen = state.num_input_tokens_seen
        if state.global_step:
            run.resume(
                state.global_step,
                consumed_tokens=self._tokens_seen or state.global_step * (self._tokens_per_step or 0),
                consumed_samples=state.global_step * _samples_per_step(args),
            )

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training goes on: an evaluation or checkpoint that was announced and did not come is over, too."""
        self._leave()

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step of the optimizer is done."""
        tokens = state.num_input_tokens_seen - self._tokens_seen
        self._tokens_seen = state.num_input_tokens_seen
        self._run.step(
            tokens=tokens or self._tokens_per_step, samples=_samples_per_step(args), iteration=state.global_step
        )
        self._enter_next(control)

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An epoch is done, after which the Trainer may evaluate and save as after a step."""
        self._enter_next(control)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The Trainer has read the mean loss since it did so before; evaluations log other names."""
        if logs and "loss" in logs:
            record_training_metrics(
                self._run.meter,
                loss=logs["loss"],
                grad_norm=logs.get("grad_norm"),
                learning_rate=logs.get("learning_rate"),
            )

    @guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A batch of an evaluation is done, perhaps of one that nothing announced."""
        if self._run.lifecycle.phase != "evaluate":
            self._enter("evaluate")

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        """An evaluation is done; where there are several data sets, that of one."""
        seconds = self._leave()
        self._run.lifecycle.evaluated(seconds, (metrics or {}).get(self._validation_loss))
        self._enter_next(control)

    @guarded
    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A prediction is done; its batches look like those of an evaluation."""
        self._leave()

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A checkpoint is complete."""
        self._run.lifecycle.checkpoint_saved(state.global_step, self._leave())

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The training is over; its last checkpoint is saved."""
        self._leave()
        self._run.end()

    def _enter_next(self, control: Any) -> None:
        """The Trainer says in advance that it will evaluate or save, in this order; no hook tells when it begins."""
        if control.should_evaluate:
            self._enter("evaluate")
        elif control.should_save:
            self._enter("checkpoint")

    def _enter(self, phase: str) -> None:
        self._leave()
        self._under_way.enter_context(managed_span(phase, _SPANS[phase]))
        self._seconds = self._under_way.enter_context(self._run.lifecycle.during(phase))

    def _leave(self) -> float | None:
        """Be done with what is under way; how long it took, if anything was."""
        seconds, self._seconds = self._seconds, None
        length = None if seconds is None else seconds()
        self._under_way.close()
        return length


def _samples_per_step(args: Any) -> int:
    """Samples of one step of the optimizer, all ranks together."""
    samples: int = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    return samples
