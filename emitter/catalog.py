"""Every metric and attribute of a training run: name, kind, units, meaning, source.

The one place where a metric name is written. Instruments are created from these entries, and the
spellings that dashboards and alerts search for are computed from them. Standard library only.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import Enum

RUN_ID = "nemo.run.id"
"""Resource attribute, and attribute of every exported data point, that names the run."""

SIGNALS = ("loss", "grad_norm")
"""Values of the attribute `signal` of `megatron.training.nonfinite`."""

PHASES = ("startup", "train", "evaluate", "checkpoint", "ended")
"""Values of the attribute `phase` of `megatron.run.phase`; exactly one of them is 1."""

RUN_TIME_BUCKETS = ("productive", "startup", "evaluate", "checkpoint", "restart", "stalled")
"""Values of the attribute `bucket` of `megatron.run.time`."""

STEP_BOUNDS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500, 600, 700, 800, 900),
    *(1_000, 1_250, 1_500, 1_750, 2_000, 2_500, 3_000, 3_500, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000),
    *(10_000, 12_500, 15_000, 17_500, 20_000, 25_000, 30_000, 40_000, 50_000, 60_000, 75_000, 90_000),
    *(120_000, 180_000, 300_000, 600_000, 1_200_000, 1_800_000),
)
"""Bucket bounds of step times. OpenTelemetry's default ends at 10 s; steps of large models take 5 to 200 s."""

DURATION_BOUNDS_S = (
    *(0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 30, 45, 60, 90),
    *(120, 180, 300, 600, 900, 1_800, 3_600, 7_200),
)
"""Bucket bounds of checkpoints, evaluations and spans: 1 ms to 2 h."""

_NAME = re.compile(r"megatron(\.[a-z][a-z0-9_]*)+")
_OTEL_UNITS = {"", "ms", "s", "By", "1", "{token}", "{sample}"}
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MOMENT = re.compile(r"iteration|(?<![a-z])iter(?!ative|able|ator)|step(?!p|wise|hen)|micro[^a-z]?batch")
"""A word for one moment of a run, also at the head of another, and not what only sounds so. A metric attribute of such
a name would make a new series each time."""


class Kind(Enum):
    """Kind of an OpenTelemetry instrument."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True, eq=False)
class Metric:
    """One entry of the catalogue. Compared by identity: it is a key of dictionaries wherever a value is read.

    Raises: ValueError if the name, the unit, the bounds or an attribute are not what an instrument may have.
    """

    name: str
    kind: Kind
    otel_unit: str = ""
    """Declared on the instrument (UCUM); decides the suffix that a pipeline may append to the name."""
    unit: str
    """What one unit of the value is; decides the axis of a panel."""
    attributes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """Bucket bounds of a histogram, in the declared unit."""
    meaning: str
    source: str

    def __post_init__(self) -> None:
        where = f"emitter.catalog: {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{where}: a name is 'megatron.' and lower-case words joined by dots")
        if self.otel_unit not in _OTEL_UNITS:
            raise ValueError(f"{where}: unit must be one of {sorted(_OTEL_UNITS)} (got {self.otel_unit!r})")
        if (self.kind is Kind.HISTOGRAM) != bool(self.bounds):
            raise ValueError(f"{where}: a histogram, and nothing else, has bucket bounds")
        if list(self.bounds) != sorted(set(self.bounds)):
            raise ValueError(f"{where}: bucket bounds must rise")
        for attribute in self.attributes:
            if _MOMENT.search(_CAMEL_HUMP.sub("_", attribute).lower()):
                raise ValueError(
                    f"{where}: no attribute may tell iterations, steps or microbatches apart (got {attribute!r}). "
                    "Such a value belongs on a span or in a gauge of its own."
                )

    @property
    def short(self) -> str:
        """Name of the value in records and jsonl: `loss`, `memory_max_active`."""
        return self.name.removeprefix("megatron.").removeprefix("training.").replace(".", "_")


def _gauge(
    name: str, unit: str, meaning: str, source: str, otel_unit: str = "", attributes: tuple[str, ...] = ()
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.GAUGE,
        otel_unit=otel_unit,
        unit=unit,
        attributes=attributes,
        meaning=meaning,
        source=source,
    )


def _counter(
    name: str, unit: str, meaning: str, source: str, otel_unit: str = "", attributes: tuple[str, ...] = ()
) -> Metric:
    return Metric(
        name=name,
        kind=Kind.COUNTER,
        otel_unit=otel_unit,
        unit=unit,
        attributes=attributes,
        meaning=meaning,
        source=source,
    )


def _duration(name: str, meaning: str, source: str, attributes: tuple[str, ...] = ()) -> Metric:
    return Metric(
        name=name,
        kind=Kind.HISTOGRAM,
        otel_unit="s",
        unit="seconds",
        attributes=attributes,
        bounds=DURATION_BOUNDS_S,
        meaning=meaning,
        source=source,
    )


_MEGATRON = "Megatron-LM, every log interval"
_LOG = "Megatron-LM's log line"
_TITAN = "torchtitan's metric dictionary"
_OURS = "this emitter"

# Core: exactly what Megatron-LM emits, in the order of record_training_metrics.
STEP_DURATION = Metric(
    name="megatron.training.step_duration_ms",
    kind=Kind.HISTOGRAM,
    otel_unit="ms",
    unit="milliseconds",
    bounds=STEP_BOUNDS_MS,
    meaning="Mean wall time of one iteration over a log interval; one observation per log interval.",
    source=_MEGATRON,
)
LOSS = _gauge(
    "megatron.training.loss", "none", "Mean training loss of a log interval; 0 when all of it was skipped.", _MEGATRON
)
THROUGHPUT_TFLOPS = _gauge(
    "megatron.training.throughput_tflops",
    "TFLOP/s per GPU",
    "Model TFLOP/s per GPU.",
    "Megatron-LM with --log-throughput (off by default)",
)
GRAD_NORM = _gauge("megatron.training.grad_norm", "none", "Gradient norm of the last iteration.", _MEGATRON)
SKIPPED_ITERS = _counter(
    "megatron.training.skipped_iters", "iterations", "Iterations whose update was skipped.", _MEGATRON
)
LEARNING_RATE = _gauge("megatron.training.learning_rate", "none", "Learning rate.", _MEGATRON)
TOKENS_PER_SEC = _gauge(
    "megatron.training.tokens_per_sec", "tokens per second", "Tokens per second, all ranks together.", _MEGATRON
)
MEMORY_ALLOCATED = _gauge(
    "megatron.training.memory_allocated_gb", "GiB", "Peak memory allocated on the exporting rank.", _MEGATRON
)

# Extensions of this product: the unit is declared, never spelt in the name.
NONFINITE = _counter(
    "megatron.training.nonfinite",
    "values",
    "NaN and Inf values seen; OpenTelemetry's SDK drops the values themselves.",
    _OURS,
    attributes=("signal",),
)
ITERATION = _gauge("megatron.training.iteration", "iterations", "Last finished iteration.", _OURS)
TARGET_ITERATION = _gauge(
    "megatron.training.target_iteration", "iterations", "Iteration at which the run is complete.", _OURS
)
CONSUMED_TOKENS = _gauge(
    "megatron.training.consumed_tokens", "tokens", "Tokens seen since the start of the run.", _OURS, "{token}"
)
CONSUMED_SAMPLES = _gauge(
    "megatron.training.consumed_samples", "samples", "Samples seen since the start.", _LOG, "{sample}"
)
VALIDATION_LOSS = _gauge("megatron.training.validation_loss", "none", "Loss on the validation set.", _LOG)
LOSS_MAX = _gauge("megatron.training.loss_max", "none", "Largest loss of any rank.", _TITAN)
LOSS_SCALE = _gauge("megatron.training.loss_scale", "none", "Scale of the loss in fp16 training.", _LOG)
PARAMS_NORM = _gauge("megatron.training.params_norm", "none", "Norm of the parameters.", _LOG)
NUM_ZEROS = _gauge("megatron.training.num_zeros", "none", "Zeros among the gradients.", _LOG)
GLOBAL_BATCH_SIZE = _gauge(
    "megatron.training.global_batch_size", "samples", "Samples of one iteration, all ranks together.", _LOG
)
MFU = _gauge(
    "megatron.training.mfu", "share", "Model FLOP/s utilization; absent under quantized training.", _TITAN, "1"
)
DATA_LOADING_TIME = _gauge(
    "megatron.training.data_loading_time", "seconds", "Mean time a step waits for data.", _TITAN, "s"
)
DATA_LOADING_SHARE = _gauge(
    "megatron.training.data_loading_share", "share", "Share of the step time spent waiting for data.", _TITAN, "1"
)
MEMORY_MAX_ACTIVE = _gauge("megatron.memory.max_active", "bytes", "Peak active memory.", _TITAN, "By")
MEMORY_MAX_ACTIVE_SHARE = _gauge(
    "megatron.memory.max_active_share", "share", "Peak active memory / capacity.", _TITAN, "1"
)
MEMORY_MAX_RESERVED = _gauge("megatron.memory.max_reserved", "bytes", "Peak reserved memory.", _TITAN, "By")
MEMORY_MAX_RESERVED_SHARE = _gauge(
    "megatron.memory.max_reserved_share", "share", "Peak reserved memory / capacity.", _TITAN, "1"
)
MEMORY_ALLOC_RETRIES = _counter(
    "megatron.memory.alloc_retries", "retries", "Allocations that were tried again.", _TITAN
)
MEMORY_OOMS = _counter("megatron.memory.ooms", "errors", "Out-of-memory errors.", _TITAN)
TIMER_DURATION = _gauge(
    "megatron.timer.duration",
    "seconds",
    "Time of one phase of an iteration, minimum and maximum across ranks.",
    "Megatron-LM's timers",
    "s",
    attributes=("phase", "agg"),
)
CHECKPOINT_SAVE_DURATION = _duration("megatron.checkpoint.save_duration", "Time to save a checkpoint.", _OURS)
CHECKPOINT_LOAD_DURATION = _duration("megatron.checkpoint.load_duration", "Time to load a checkpoint.", _OURS)
CHECKPOINT_LAST_SUCCESS_TIME = _gauge(
    "megatron.checkpoint.last_success_time", "Unix time", "When the last checkpoint was complete.", _OURS, "s"
)
CHECKPOINT_LAST_ITERATION = _gauge(
    "megatron.checkpoint.last_iteration", "iterations", "Iteration of the last complete checkpoint.", _OURS
)
CHECKPOINT_FAILURES = _counter(
    "megatron.checkpoint.failures", "checkpoints", "Checkpoints that could not be saved.", _OURS
)
EVALUATION_DURATION = _duration("megatron.evaluation.duration", "Time of one evaluation.", _OURS)
WORLD_SIZE = _gauge("megatron.run.world_size", "GPUs", "Ranks of the run.", _OURS)
GPUS_PER_NODE = _gauge("megatron.run.gpus_per_node", "GPUs", "Ranks on one node.", _OURS)
RUN_INFO = _gauge(
    "megatron.run.info",
    "none",
    "Always 1; the attributes name the run's configuration.",
    _OURS,
    attributes=("attempt", "tp", "pp", "dp", "precision", "model"),
)
RUN_CONFIG = _gauge(
    "megatron.run.config", "none", "Always 1; one series per option.", _OURS, attributes=("option", "value")
)
RUN_START_TIME = _gauge("megatron.run.start_time", "Unix time", "When the run started.", _OURS, "s")
RUN_PHASE = _gauge("megatron.run.phase", "none", "1 for the phase the run is in, else 0.", _OURS, attributes=("phase",))
RUN_ATTEMPT = _gauge("megatron.run.attempt", "none", "Number of the attempt, counted from 0.", _OURS)
RUN_TIME = _counter("megatron.run.time", "seconds", "Time spent, by purpose.", _OURS, "s", attributes=("bucket",))
SPAN_DURATION = _duration(
    "megatron.span.duration", "Duration of spans, as a metric.", _OURS, attributes=("span", "group")
)

CORE = (
    STEP_DURATION,
    LOSS,
    THROUGHPUT_TFLOPS,
    GRAD_NORM,
    SKIPPED_ITERS,
    LEARNING_RATE,
    TOKENS_PER_SEC,
    MEMORY_ALLOCATED,
)
"""What unmodified Megatron-LM emits."""

EXTENSIONS = (
    NONFINITE,
    ITERATION,
    TARGET_ITERATION,
    CONSUMED_TOKENS,
    CONSUMED_SAMPLES,
    VALIDATION_LOSS,
    LOSS_MAX,
    LOSS_SCALE,
    PARAMS_NORM,
    NUM_ZEROS,
    GLOBAL_BATCH_SIZE,
    MFU,
    DATA_LOADING_TIME,
    DATA_LOADING_SHARE,
    MEMORY_MAX_ACTIVE,
    MEMORY_MAX_ACTIVE_SHARE,
    MEMORY_MAX_RESERVED,
    MEMORY_MAX_RESERVED_SHARE,
    MEMORY_ALLOC_RETRIES,
    MEMORY_OOMS,
    TIMER_DURATION,
    CHECKPOINT_SAVE_DURATION,
    CHECKPOINT_LOAD_DURATION,
    CHECKPOINT_LAST_SUCCESS_TIME,
    CHECKPOINT_LAST_ITERATION,
    CHECKPOINT_FAILURES,
    EVALUATION_DURATION,
    WORLD_SIZE,
    GPUS_PER_NODE,
    RUN_INFO,
    RUN_CONFIG,
    RUN_START_TIME,
    RUN_PHASE,
    RUN_ATTEMPT,
    RUN_TIME,
    SPAN_DURATION,
)
"""What only this product's emitter sends."""

METRICS = CORE + EXTENSIONS
_BY_NAME = {metric.name: metric for metric in METRICS}


def get(name: str) -> Metric:
    """The entry of a full metric name.

    Raises: ValueError that offers the nearest name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        near = difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"emitter.catalog: no metric {name!r}{hint}.") from None
