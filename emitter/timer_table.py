"""The timers of an iteration that dashboards know: values of the attribute `phase` of catalog.TIMER_DURATION.

Megatron-LM renames its timers now and then. A phase keeps the name it has here, whichever release runs.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE = "TP + forward/backward"
DATA_PARALLEL = "DP communication"
PIPELINE = "PP communication"
OPTIMIZER = "optimizer"
OTHER = "other"

GROUPS = (COMPUTE, DATA_PARALLEL, PIPELINE, OPTIMIZER, OTHER)
"""Panel groups, in display order."""


@dataclass(frozen=True, kw_only=True)
class Timer:
    """One phase of an iteration."""

    name: str
    """As Megatron-LM calls its timer."""
    group: str
    meaning: str
    aliases: tuple[str, ...] = ()
    """Names of the same phase in other releases; no release uses two of them in one run."""


def _timer(name: str, group: str, meaning: str, *aliases: str) -> Timer:
    return Timer(name=name, group=group, meaning=meaning, aliases=aliases)


TIMERS = (
    _timer("forward-backward", COMPUTE, "All forward and backward passes, with pipeline communication and waiting."),
    _timer("forward-compute", COMPUTE, "Forward passes of all microbatches, with the loading of their data."),
    _timer("backward-compute", COMPUTE, "Backward passes of all microbatches."),
    _timer(
        "grads-reduce-scatter",
        DATA_PARALLEL,
        "Reduction of gradients across data-parallel ranks, as far as it does not overlap with the backward passes: "
        "a reduce-scatter with the distributed optimizer, else an all-reduce. One timer for both since late 2023.",
        "grads-all-reduce",
        "all-grads-sync",
    ),
    _timer("params-all-gather", DATA_PARALLEL, "Gathering of updated parameters with the distributed optimizer."),
    _timer(
        "layernorm-grads-all-reduce",
        DATA_PARALLEL,
        # Megatron-LM's list of timers to log still has the old name alone: gather the new one as well.
        "Reduction of gradients that every tensor-parallel rank has: layer norms, and since 2025 other modules too.",
        "non-tensor-parallel-grads-all-reduce",
    ),
    _timer("embedding-grads-all-reduce", DATA_PARALLEL, "Reduction of embeddings that first and last stage share."),
    _timer("forward-recv", PIPELINE, "Receiving activations from the stage before."),
    _timer("forward-send", PIPELINE, "Sending activations to the next stage."),
    _timer("backward-recv", PIPELINE, "Receiving gradients from the next stage."),
    _timer("backward-send", PIPELINE, "Sending gradients to the stage before."),
    _timer("forward-send-backward-recv", PIPELINE, "Exchange with the next stage, both ways at once."),
    _timer("backward-send-forward-recv", PIPELINE, "Exchange with the stage before, both ways at once."),
    _timer("optimizer", OPTIMIZER, "The whole optimizer step."),
    _timer("optimizer-copy-to-main-grad", OPTIMIZER, "Copying gradients to full precision."),
    _timer("optimizer-unscale-and-check-inf", OPTIMIZER, "Undoing the loss scale and looking for Inf."),
    _timer("optimizer-count-zeros", OPTIMIZER, "Counting zeros among the gradients."),
    _timer("optimizer-inner-step", OPTIMIZER, "The update itself."),
    _timer("optimizer-copy-main-to-model-params", OPTIMIZER, "Copying updated parameters back to model precision."),
    _timer("batch-generator", OTHER, "Loading and broadcasting a batch."),
)
"""The phases of Baidu's AIHC performance page, in its order."""

CANONICAL = {name: timer.name for timer in TIMERS for name in (timer.name, *timer.aliases)}
"""Name of the phase, by every name it has."""
