"""Data loading, and the rest of torchtitan's numbers: a row of `training-run`, folded, for loops that have them."""

from __future__ import annotations

from dashboards import style
from dashboards.dashboard import Panel, Row
from dashboards.ids import RunPanel
from dashboards.queries import learning, memory, speed
from dashboards.scope import Scope
from emitter import catalog


def row(scope: Scope) -> Row:
    """Whether the run waits for data, uses its GPUs and fits into their memory."""
    return style.row(
        "Data loading and torchtitan",
        data_loading_share_panel(scope),
        data_loading_time_panel(scope),
        mfu_panel(scope),
        loss_max_panel(scope),
        memory_share_panel(scope),
        memory_errors_panel(scope),
        collapsed=True,
    )


def data_loading_share_panel(scope: Scope) -> Panel:
    """Waiting for data, against the step."""
    return style.timeseries(
        id=RunPanel.DATA_LOADING_SHARE,
        title="Waiting for data, share",
        description="Share of the step time spent waiting for data; some percent and rising means that the loaders "
        "or their storage bound the run.",
        unit=catalog.DATA_LOADING_SHARE.unit,
        queries=(style.line(scope, speed.data_loading_share(scope)),),
        needs=(catalog.DATA_LOADING_SHARE,),
        width=8,
    )


def data_loading_time_panel(scope: Scope) -> Panel:
    """Waiting for data."""
    return style.timeseries(
        id=RunPanel.DATA_LOADING_TIME,
        title="Waiting for data, per step",
        description="Mean time that a step waits for its batch; lone peaks are a shard that was opened or a storage "
        "that paused.",
        unit=catalog.DATA_LOADING_TIME.unit,
        queries=(style.line(scope, speed.data_loading_time(scope)),),
        needs=(catalog.DATA_LOADING_TIME,),
        width=8,
    )


def mfu_panel(scope: Scope) -> Panel:
    """Use of the GPUs."""
    return style.timeseries(
        id=RunPanel.MFU,
        title="MFU",
        description="Model FLOP/s as a share of what the GPUs could do; quantized training has none.",
        unit=catalog.MFU.unit,
        queries=(style.line(scope, speed.mfu(scope)),),
        needs=(catalog.MFU,),
        width=8,
    )


def loss_max_panel(scope: Scope) -> Panel:
    """The rank with the largest loss."""
    return style.timeseries(
        id=RunPanel.LOSS_MAX,
        title="Loss, mean and largest of any rank",
        description="The largest loss stays a little above the mean; one that leaves it is a rank with bad data or a "
        "broken GPU.",
        unit=catalog.LOSS_MAX.unit,
        queries=(
            style.line(scope, learning.loss(scope).and_(learning.loss_max(scope)), "mean"),
            style.line(scope, learning.loss_max(scope), "largest"),
        ),
        needs=(catalog.LOSS_MAX,),
        width=8,
    )


def memory_share_panel(scope: Scope) -> Panel:
    """How full the memory is."""
    return style.timeseries(
        id=RunPanel.MEMORY_SHARE,
        title="Memory, share of capacity",
        description="Peak of the last log interval; active near 100 % ends out of memory, reserved far above active "
        "is fragmentation.",
        unit=catalog.MEMORY_MAX_ACTIVE_SHARE.unit,
        queries=(
            style.line(scope, memory.active_share(scope), "active"),
            style.line(scope, memory.reserved_share(scope), "reserved"),
        ),
        needs=(catalog.MEMORY_MAX_ACTIVE_SHARE, catalog.MEMORY_MAX_RESERVED_SHARE),
        width=8,
    )


def memory_errors_panel(scope: Scope) -> Panel:
    """Allocations that failed."""
    return style.timeseries(
        id=RunPanel.MEMORY_ERRORS,
        title="Allocation retries and out of memory",
        description="Events within the window before each moment; every retry empties the allocator's cache and "
        "stops the step, and zero is healthy.",
        unit=catalog.MEMORY_OOMS.unit,
        queries=(
            style.line(scope, memory.retries(scope), "retries"),
            style.line(scope, memory.ooms(scope), "out of memory"),
        ),
        needs=(catalog.MEMORY_ALLOC_RETRIES, catalog.MEMORY_OOMS),
        bars=True,
        width=8,
    )
