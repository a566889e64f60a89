"""A training loop's run, from its start to its end, in whatever way that comes.

with TrainingRun(to="scrape:9464", target_iteration=1000) as run:
    for batch in batches:
        loss = train(batch)
        run.step(loss=loss, tokens=batch.tokens)
        if run.iteration % 100 == 0:
            with run.evaluation() as evaluation:
                evaluation.loss = validate()
            with run.checkpoint():
                save()
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, SupportsFloat

from . import catalog
from .catalog import Metric
from .instruments import record, record_training_metrics
from .lifecycle import Lifecycle
from .plain import AttributeValue
from .repeats import Once
from .run_config import Options
from .setup import set_up
from .spans import managed_span

LINGER_S = 20.0
"""Longest wait for the scrape that fetches the end of the run; schedulers kill 30 s after SIGTERM."""


@dataclass
class Evaluation:
    """What an evaluation found; fill in while it lasts."""

    loss: SupportsFloat | None = None


class TrainingRun:
    """One attempt of a run, as metrics and spans. A context manager; without `with` it ends when the process does.

    Settings come from MEGATRON_OTEL_* and the standard variables, `run_id` and `to` over them; giving `to` switches
    telemetry on. `config` is the run's options: a mapping or parsed arguments. With `log_every` N only every Nth step
    is reported, and only its loss read: on a GPU reading waits for the step.

    On ranks that do not export, every method does nothing. One thread steps. What is wrong raises at set-up, and an
    attribute that no catalog entry declares; nothing else ever does.

    Raises: ValueError if a setting or an argument cannot be.
    """

    def __init__(
        self,
        run_id: str | None = None,
        *,
        to: str | Iterable[str] | None = None,
        arguments: argparse.Namespace | None = None,
        config: Options | None = None,
        target_iteration: int | None = None,
        world_size: int | None = None,
        gpus_per_node: int | None = None,
        attempt: int | None = None,
        log_every: int = 1,
        interval_s: float | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        if log_every < 1:
            raise ValueError(f"TrainingRun: log_every counts steps (got {log_every}). Use 1 or more.")
        self.telemetry = set_up(arguments, run_id=run_id, to=to, options=config, attempt=attempt, interval_s=interval_s)
        self.meter = self.telemetry.meter
        self.run_id = self.telemetry.run_id
        self.iteration = 0
        self._consumed_tokens = self._consumed_samples = 0.0
        self._log_every = log_every
        self._linger_s = linger_s
        self._process = os.getpid()
        self._ended = not self.telemetry.exporting
        self._once = Once(__name__)
        self._since_log = _Pending()
        self._spans = ExitStack()
        self.lifecycle = Lifecycle(self.meter, _clock(), attempt=self.telemetry.attempt)
        if self._ended:
            return
        self.record(catalog.TARGET_ITERATION, target_iteration)
        self.record(catalog.WORLD_SIZE, world_size)
        self.record(catalog.GPUS_PER_NODE, gpus_per_node)
        atexit.register(self.end)
        self._take_sigterm()

    def record(
        self,
        metric: Metric,
        value: SupportsFloat | None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> None:
        """Record one value of any catalog entry.

        Raises: ValueError if the entry does not declare one of the attributes.
        """
        record(self.meter, metric, value, attributes)

    def step(
        self,
        loss: SupportsFloat | None = None,
        *,
        tokens: SupportsFloat | None = None,
        samples: SupportsFloat | None = None,
        grad_norm: SupportsFloat | None = None,
        learning_rate: SupportsFloat | None = None,
        throughput_tflops: SupportsFloat | None = None,
        memory_allocated_gb: SupportsFloat | None = None,
        skipped: bool = False,
        iteration: int | None = None,
        seconds: SupportsFloat | None = None,
    ) -> None:
        """A step is done: its loss, the tokens and samples of all ranks together, and what else is known.

        `iteration` is its number, else one more than the last; `seconds` is its length, else the time since the last.
        """
        if self.meter is None:
            return
        pending = self._since_log
        pending.steps += 1
        pending.seconds = seconds
        self.iteration += 1
        with self._going_on():  # tokens may be a tensor, and its arithmetic may fail
            pending.add(tokens, samples, skipped)
            if iteration is not None:
                self.iteration = int(iteration)
        if pending.steps < self._log_every and self.lifecycle.phase != "startup":
            return
        self._report_steps()
        self.record(catalog.GLOBAL_BATCH_SIZE, samples)
        record_training_metrics(
            self.meter,
            loss=loss,
            throughput_tflops=throughput_tflops,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            memory_allocated_gb=memory_allocated_gb,
        )

    def _report_steps(self) -> None:
        """Report the steps since the last report: after each interval, before a checkpoint, and at the end."""
        pending, self._since_log = self._since_log, _Pending()
        if not pending.steps:
            return
        seconds = self.lifecycle.step(pending.steps, pending.seconds)
        self.record(catalog.ITERATION, self.iteration)
        self.record(catalog.SKIPPED_ITERS, pending.skipped)
        with self._going_on():
            tokens, samples = float(pending.tokens), float(pending.samples)
            self._consumed_tokens += tokens
            self._consumed_samples += samples
            if tokens:
                self.record(catalog.CONSUMED_TOKENS, self._consumed_tokens)
            if samples:
                self.record(catalog.CONSUMED_SAMPLES, self._consumed_samples)
            if tokens and seconds:
                self.record(catalog.TOKENS_PER_SEC, tokens / (seconds * pending.steps))

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """What fails in the block is told once, and training goes on."""
        try:
            yield
        except Exception as error:
            self._once.warn("step", "TrainingRun.step: cannot count (got %r). Training goes on.", error)

    @contextmanager
    def evaluation(self) -> Iterator[Evaluation]:
        """Evaluating for as long as the block lasts; set `loss` of what it yields."""
        found = Evaluation()
        with managed_span("evaluate", "megatron.evaluate"), self.lifecycle.during("evaluate") as seconds:
            yield found
            self.lifecycle.evaluated(seconds(), found.loss)

    @contextmanager
    def checkpoint(self, iteration: int | None = None) -> Iterator[None]:
        """Saving a checkpoint for as long as the block lasts; one that raises is counted as failed.

        Leave it out where a library saves in the background and tells afterwards: call `lifecycle.checkpoint_saved`.
        """
        self._report_steps()
        number = self.iteration if iteration is None else iteration
        attributes = {"megatron.iteration": number}
        with (
            managed_span("checkpoint", "megatron.save_checkpoint", **attributes),
            self.lifecycle.during("checkpoint") as seconds,
        ):
            try:
                yield
            except Exception:
                self.lifecycle.checkpoint_failed()
                raise
            self.lifecycle.checkpoint_saved(number, seconds())

    @contextmanager
    def load_checkpoint(self) -> Iterator[None]:
        """Reading a checkpoint for as long as the block lasts; call `resume` with what it says."""
        with managed_span("load_checkpoint", "megatron.load_checkpoint"), self.lifecycle.during("startup") as seconds:
            yield
            self.lifecycle.checkpoint_loaded(seconds())

    def resume(self, iteration: int, *, consumed_tokens: float = 0, consumed_samples: float = 0) -> None:
        """Go on from a checkpoint's iteration and from what it had consumed.

        Raises: ValueError or TypeError if the iteration is no number.
        """
        self.iteration = int(iteration)
        self._consumed_tokens, self._consumed_samples = consumed_tokens, consumed_samples
        self.record(catalog.ITERATION, iteration)
        self.record(catalog.CHECKPOINT_LAST_ITERATION, iteration)

    def end(self) -> None:
        """The run is over: export its end and the last values, and close every way out."""
        if self._ended or os.getpid() != self._process:
            return
        self._ended = True
        atexit.unregister(self.end)
        self.leave_sigterm()
        self._report_steps()
        self.lifecycle.end()
        self._spans.close()
        if self.telemetry.addresses:
            self.telemetry.flush()  # before the wait, in which the process may be killed; a shutdown pushes by itself
            self.telemetry.await_scrape(self._linger_s)
        self.telemetry.shutdown()

    def leave_sigterm(self) -> None:
        """Leave SIGTERM to whoever looks after it from now on; the run ends when the program leaves."""
        if self in _terminable:
            _terminable.remove(self)
        if not _terminable and _on_main_thread() and signal.getsignal(signal.SIGTERM) is _terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def __enter__(self) -> TrainingRun:
        self._spans.enter_context(managed_span("job", "megatron.pretrain"))
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _take_sigterm(self) -> None:
        """End the run on SIGTERM, where nobody else does anything about it."""
        if _on_main_thread() and signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _terminated):
            _terminable.append(self)
            signal.signal(signal.SIGTERM, _terminated)


_terminable: list[TrainingRun] = []
"""Runs that SIGTERM ends: a process has one handler, and usually one run."""


def _terminated(number: int, _frame: FrameType | None) -> None:
    """End every run, then let the signal have its usual effect."""
    for run in list(_terminable):
        run.end()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@dataclass
class _Pending:
    """Steps since the last report."""

    steps: int = 0
    tokens: Any = 0.0
    """A sum; of tensors it is one, which is not read before it is reported."""
    samples: Any = 0.0
    skipped: int = 0
    seconds: SupportsFloat | None = None
    """Length of the last one, if that is given."""

    def add(self, tokens: Any, samples: Any, skipped: bool) -> None:
        self.skipped += bool(skipped)
        self.tokens = self.tokens if tokens is None else self.tokens + tokens
        self.samples = self.samples if samples is None else self.samples + samples


def _clock() -> Callable[[], float]:
    """Unix time that never jumps, whatever is done to the machine's clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
