"""A training loop's run, from its start to its end, in whatever way that comes.

with TrainingRun("my-run", to="scrape:9464", target_iteration=1000) as run:
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
from .instruments import AttributeValue, record, record_training_metrics
from .lifecycle import Lifecycle
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

    On ranks that do not export, every method does nothing. Nothing but a wrong setting ever raises.

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
        self._leave_sigterm: Callable[[], None] = lambda: None
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
        seconds: float | None = None,
    ) -> None:
        """A step is done: its loss, the tokens and samples of all ranks together, and what else is known.

        `iteration` is its number, else one more than the last; `seconds` is its length, else the time since the last.
        """
        if self.meter is None:
            return
        self.iteration = self.iteration + 1 if iteration is None else iteration
        try:
            pending = self._since_log
            pending.add(tokens, samples, skipped)
            if pending.steps < self._log_every and self.lifecycle.phase != "startup":
                return
            self._since_log = _Pending()
            self._report(pending, self.lifecycle.step(pending.steps, seconds))
            self.record(catalog.GLOBAL_BATCH_SIZE, samples)
        except Exception as error:  # tokens may be a tensor, too
            self._once.warn("step", "TrainingRun.step: cannot count (got %r). Training goes on.", error)
        record_training_metrics(
            self.meter,
            loss=loss,
            throughput_tflops=throughput_tflops,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            memory_allocated_gb=memory_allocated_gb,
        )

    def _report(self, pending: _Pending, seconds: float | None) -> None:
        """Report the steps since the last report, of which one took so long."""
        self.record(catalog.ITERATION, self.iteration)
        self.record(catalog.SKIPPED_ITERS, pending.skipped)
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
        """Go on from a checkpoint's iteration and from what it had consumed."""
        self.iteration = iteration
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
        self.lifecycle.end()
        self._spans.close()
        self.telemetry.flush()
        self.telemetry.await_scrape(self._linger_s)
        self.telemetry.shutdown()

    def leave_sigterm(self) -> None:
        """Leave SIGTERM to whoever looks after it from now on; the run ends when the program leaves."""
        self._leave_sigterm()

    def __enter__(self) -> TrainingRun:
        self._spans.enter_context(managed_span("job", "megatron.pretrain"))
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _take_sigterm(self) -> None:
        """End the run on SIGTERM, where nobody else does anything about it; then let it have its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def terminated(number: int, _frame: FrameType | None) -> None:
            self.end()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        def restore() -> None:
            on_main = threading.current_thread() is threading.main_thread()
            if on_main and signal.getsignal(signal.SIGTERM) is terminated:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, terminated)
        self._leave_sigterm = restore


@dataclass
class _Pending:
    """Steps since the last report."""

    steps: int = 0
    tokens: Any = 0.0
    """A sum; of tensors it is one, which is not read before it is reported."""
    samples: Any = 0.0
    skipped: int = 0

    def add(self, tokens: Any, samples: Any, skipped: bool) -> None:
        self.steps += 1
        self.skipped += bool(skipped)
        self.tokens = self.tokens if tokens is None else self.tokens + tokens
        self.samples = self.samples if samples is None else self.samples + samples


def _clock() -> Callable[[], float]:
    """Unix time that never jumps, whatever is done to the machine's clock."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
