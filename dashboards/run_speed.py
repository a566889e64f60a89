"""How fast the run is, and its memory: a row of `training-run`."""

from __future__ import annotations

from dashboards import style
from dashboards.dashboard import Panel, Row
from dashboards.ids import RunPanel
from dashboards.queries import memory, speed
from dashboards.scope import Scope
from emitter import catalog


def row(scope: Scope) -> Row:
    """Whether the run is slower than it was."""
    return style.row(
        "Speed and memory",
        tokens_per_second_panel(scope),
        tokens_per_gpu_panel(scope),
        tokens_per_node_panel(scope),
        step_time_panel(scope),
        step_time_quantiles_panel(scope),
        tflops_panel(scope),
        memory_panel(scope),
    )


def tokens_per_second_panel(scope: Scope) -> Panel:
    """Training speed."""
    return style.timeseries(
        id=RunPanel.TOKENS_PER_SECOND,
        title="Tokens per second",
        description="Speed of all ranks together; a process that stays below the dashed line, a share of the run's "
        "median of the hours before, makes ThroughputCollapse fire, unless a restart made the past another's.",
        unit=catalog.TOKENS_PER_SEC.unit,
        queries=(
            style.line(scope, speed.tokens_per_second(scope)),
            style.limit(scope, speed.tokens_per_second_floor(scope), "collapse"),
        ),
        needs=(catalog.TOKENS_PER_SEC,),
        width=8,
    )


def tokens_per_gpu_panel(scope: Scope) -> Panel:
    """Speed that can be compared between sizes."""
    return style.timeseries(
        id=RunPanel.TOKENS_PER_GPU,
        title="Tokens per second and GPU",
        description="Speed of one GPU, comparable between runs of different size; empty while the number of GPUs is "
        "not known.",
        unit=catalog.TOKENS_PER_SEC.unit,
        queries=(style.line(scope, speed.tokens_per_gpu(scope)),),
        needs=(catalog.TOKENS_PER_SEC, catalog.WORLD_SIZE),
        decimals=2,
        width=8,
    )


def tokens_per_node_panel(scope: Scope) -> Panel:
    """Speed in the unit of budgets."""
    return style.timeseries(
        id=RunPanel.TOKENS_PER_NODE,
        title="Tokens per node and day",
        description="Billions of tokens that one node would process in a day at this speed; empty while the number of "
        "GPUs of the run or of a node is not known.",
        unit="billions of tokens per day",
        queries=(style.line(scope, speed.tokens_per_node_and_day(scope)),),
        needs=(catalog.TOKENS_PER_SEC, catalog.WORLD_SIZE, catalog.GPUS_PER_NODE),
        width=8,
    )


def step_time_panel(scope: Scope) -> Panel:
    """Mean step time."""
    return style.timeseries(
        id=RunPanel.STEP_TIME,
        title="Step time, mean",
        description="Right whatever the buckets are; a rise of some percent is one slow GPU.",
        unit=catalog.STEP_DURATION.unit,
        queries=(style.line(scope, speed.step_time_mean(scope)),),
        needs=(catalog.STEP_DURATION,),
    )


def step_time_quantiles_panel(scope: Scope) -> Panel:
    """Spread of the step time."""
    return style.timeseries(
        id=RunPanel.STEP_TIME_QUANTILES,
        title="Step time, quantiles of log intervals",
        description="Each observation is the mean of one log interval, and as coarse as its bucket: the lines part "
        "when some intervals are slow, single slow steps do not show.",
        unit=catalog.STEP_DURATION.unit,
        queries=(
            style.line(scope, speed.step_time_quantile(0.5, scope), "p50"),
            style.line(scope, speed.step_time_quantile(0.95, scope), "p95"),
        ),
        needs=(catalog.STEP_DURATION,),
    )


def tflops_panel(scope: Scope) -> Panel:
    """Model FLOP/s."""
    return style.timeseries(
        id=RunPanel.TFLOPS,
        title="TFLOP/s per GPU",
        description="Model FLOP/s of one GPU; Megatron-LM exports it only with --log-throughput.",
        unit=catalog.THROUGHPUT_TFLOPS.unit,
        queries=(style.line(scope, speed.tflops(scope)),),
        needs=(catalog.THROUGHPUT_TFLOPS,),
    )


def memory_panel(scope: Scope) -> Panel:
    """Peak memory."""
    return style.timeseries(
        id=RunPanel.MEMORY,
        title="Peak memory allocated",
        description="Highest value since the start on the exporting rank, so it never falls; a steady rise ends out "
        "of memory.",
        unit=catalog.MEMORY_ALLOCATED.unit,
        queries=(style.line(scope, memory.allocated(scope)),),
        needs=(catalog.MEMORY_ALLOCATED,),
    )
