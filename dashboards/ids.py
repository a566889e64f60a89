"""UIDs of the dashboards and numbers of their panels; append only, never reused: links and alerts rely on them."""

from __future__ import annotations

from enum import IntEnum

RUN = "training-run"


class RunPanel(IntEnum):
    """Panels of `training-run`."""

    STATE = 1
    SINCE_PROGRESS = 2
    ITERATION = 3
    ETA = 4
    GPUS = 5
    FIRING_ALERTS = 6
    LOSS = 7
    GRAD_NORM = 8
    LEARNING_RATE = 9
    STEP_TIME = 10
    STEP_TIME_QUANTILES = 11
    TOKENS_PER_SECOND = 12
    TOKENS_PER_GPU = 13
    TFLOPS = 14
    SKIPPED = 15
    NONFINITE = 16
    MEMORY = 17
    PHASE = 19
    TARGET_ITERATION = 21
    SINCE_CHECKPOINT = 22
    LAST_CHECKPOINT = 23
    FAILED_CHECKPOINTS = 24
    CHECKPOINT_TIME = 25
    VALIDATION_LOSS = 26
    GOODPUT = 27
    ATTEMPT = 28
    TIME_SHARES = 29
    PHASE_TIME = 30
    PHASE_SPREAD = 31
    SPAN_TIME = 32
    DATA_LOADING_SHARE = 33
    DATA_LOADING_TIME = 34
    MFU = 35
    LOSS_MAX = 36
    MEMORY_SHARE = 37
    MEMORY_ERRORS = 38
    TOKENS_PER_NODE = 39
