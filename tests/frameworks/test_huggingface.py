"""A real Hugging Face Trainer with a tiny model on the CPU, and what its run exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from points import Exported, Points, StartRun
from transformers import Trainer, TrainerCallback, TrainingArguments

from emitter.callbacks.huggingface import TrainingRunCallback
from emitter.loop import TrainingRun

STEPS = 6
SAMPLES = 2


class Model(torch.nn.Module):
    """A line through the origin. Its loss is what the batch says, and nothing is learnt from it."""

    main_input_name = "x"

    def __init__(self, *, at_batch: Callable[[bool], object] = lambda training: None):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.at_batch = at_batch

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """A loss whose value is known and whose gradient exists."""
        self.at_batch(self.training)
        return {"loss": self.line(x[:, None].float()).mean() * 0 + labels.float().mean(), "logits": x}


class InOrder(Trainer):
    """A Trainer that does not shuffle."""

    def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler[int]:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]


def data(losses: list[float]) -> list[dict[str, Any]]:
    """Samples, two of each loss: one batch."""
    return [{"x": 1, "labels": loss} for loss in losses for _ in range(SAMPLES)]


def trainer(
    folder: Path,
    run: TrainingRun,
    *callbacks: TrainerCallback,
    model: Model | None = None,
    batches: int = STEPS,
    tokens_per_step: float | None = None,
    **options: Any,
) -> Trainer:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": SAMPLES,
        "num_train_epochs": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "learning_rate": 1.0,
        **options,
    }
    return InOrder(
        model or Model(),
        TrainingArguments(**settings),
        train_dataset=data([float(i) for i in range(batches)]),  # type: ignore[arg-type]
        eval_dataset=data([42.0, 42.0]),  # type: ignore[arg-type]
        callbacks=[TrainingRunCallback(run, tokens_per_step=tokens_per_step), *callbacks],
    )


def test_each_step_of_the_optimizer_is_a_step(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Iteration, target, samples and tokens of each step are exported, and what the Trainer logs."""
    trainer(tmp_path, start_run(world_size=8), tokens_per_step=100).train()
    last = exported()[-1]
    assert last["training.iteration"] == last["training.target_iteration"] == STEPS
    assert last["training.step_duration_ms"] == STEPS - 1  # the first step is start-up
    assert last["training.loss"] == STEPS - 1
    assert last["training.grad_norm"] == 0
    assert last["training.learning_rate"] == pytest.approx(1 / STEPS, abs=1 / STEPS)
    assert last["training.consumed_samples"] == SAMPLES * STEPS
    assert last["training.consumed_tokens"] == 100 * STEPS
    assert last["training.tokens_per_sec"] > 0
    assert last["run.world_size"] == 1
    assert last["run.phase.ended"] == 1


def test_a_log_interval_has_its_mean_loss(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Steps count one by one between two logs; the loss is the mean since the last, over accumulated batches too."""
    fit = trainer(tmp_path, start_run(), logging_steps=2, gradient_accumulation_steps=2, batches=8)
    fit.train()
    last = exported()[-1]
    assert last["training.iteration"] == last["training.target_iteration"] == 4
    assert last["training.step_duration_ms"] == 3
    assert last["training.loss"] == (4 + 5 + 6 + 7) / 4
    assert last["training.consumed_samples"] == 8 * SAMPLES


def test_the_trainers_count_of_tokens_is_taken(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Where the Trainer counts input tokens, nobody has to say how many a step has."""
    trainer(tmp_path, start_run(), include_num_input_tokens_seen=True).train()
    last = exported()[-1]
    assert last["training.consumed_tokens"] == SAMPLES * STEPS
    assert last["training.tokens_per_sec"] > 0


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_an_evaluation_is_a_phase(strategy: str, start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """From before its first batch on the run evaluates, and its loss is exported."""
    run = start_run()

    def look(training: bool) -> None:
        if not training:
            run.telemetry.flush()

    trainer(tmp_path, run, model=Model(at_batch=look), eval_strategy=strategy, eval_steps=STEPS).train()
    first, *_, last = exported()
    assert first["run.phase.evaluate"] == 1
    assert "evaluation.duration" not in first
    assert last["training.validation_loss"] == 42
    assert last["evaluation.duration"] == 1
    assert last["run.time.evaluate"] > 0


def test_an_evaluation_that_nothing_announced_is_one(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """One that is called for by hand begins with its first batch; training goes on after it."""
    run = start_run()

    class Now(TrainerCallback):
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            fit.evaluate()
            assert run.lifecycle.phase == "startup"

    fit = trainer(tmp_path, run, Now())
    fit.train()
    last = exported()[-1]
    assert last["evaluation.duration"] == 1
    assert last["training.step_duration_ms"] == STEPS - 1


def test_a_checkpoint_is_a_phase(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """Saving is measured from when the Trainer announced it, after the evaluation of the same step."""
    fit = trainer(tmp_path, start_run(), eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=3)
    fit.train()
    last = exported()[-1]
    assert last["checkpoint.save_duration"] == 2 == len(list(tmp_path.glob("checkpoint-*")))
    assert last["evaluation.duration"] == 2
    assert last["checkpoint.last_iteration"] == STEPS
    assert last["run.time.checkpoint"] > 0


def test_what_was_announced_may_not_come(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """A callback after ours that calls a checkpoint off leaves none behind."""

    class Not(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_save = False

    trainer(tmp_path, start_run(), Not(), save_strategy="steps", save_steps=1).train()
    last = exported()[-1]
    assert "checkpoint.save_duration" not in last
    assert "checkpoint.last_iteration" not in last
    assert last["training.step_duration_ms"] == STEPS - 1


def test_a_training_goes_on_from_a_checkpoint(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """A resumed run counts on from the checkpoint's iteration and consumption, as a second attempt."""
    options = {"save_strategy": "steps", "save_steps": 4, "include_num_input_tokens_seen": True}
    trainer(tmp_path, start_run(), **options).train()
    exported()
    run = start_run(attempt=1)
    seen: list[Points] = []

    def look(_training: bool) -> None:
        if not seen:
            run.telemetry.flush()
            seen.extend(exported())

    trainer(tmp_path, run, model=Model(at_batch=look), **options).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-4")
    )
    last = exported()[-1]
    assert seen[0]["training.iteration"] == seen[0]["checkpoint.last_iteration"] == 4
    assert last["training.iteration"] == STEPS
    assert last["training.consumed_samples"] == last["training.consumed_tokens"] == SAMPLES * STEPS
    assert last["run.attempt"] == 1
    assert last["run.time.restart"] > 0


def test_an_exception_ends_the_run_with_its_block(start_run: StartRun, exported: Exported, tmp_path: Path) -> None:
    """The Trainer tells no callback of an error; a `with` block around the training does."""

    def fail(_training: bool) -> None:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"), start_run() as run:
        trainer(tmp_path, run, model=Model(at_batch=fail)).train()
    assert exported()[-1]["run.phase.ended"] == 1


def test_a_rank_that_does_not_export_trains(
    start_run: StartRun, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where telemetry is off, everything is as without a run."""
    monkeypatch.setenv("MEGATRON_OTEL_ENABLED", "0")
    run = start_run()
    fit = trainer(tmp_path, run, eval_strategy="epoch", save_strategy="epoch")
    fit.train()
    assert run.meter is None
    assert fit.state.global_step == STEPS
    assert exported() == []


def test_what_fails_in_a_callback_stays_there(
    start_run: StartRun, exported: Exported, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that fails is logged once, however often, and the training goes on."""
    run = start_run()
    run.step = None  # type: ignore[assignment,method-assign]
    fit = trainer(tmp_path, run)
    fit.train()
    assert fit.state.global_step == STEPS
    assert len([record for record in caplog.records if "on_step_end" in record.getMessage()]) == 1
    assert exported()[-1]["run.phase.ended"] == 1
