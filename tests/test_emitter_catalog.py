"""The catalog: names are contracts, and an entry is checked when it is written."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog
from emitter.catalog import Kind, Metric
from emitter.instruments import record

MEGATRON = {
    "megatron.training.step_duration_ms": ("histogram", "ms"),
    "megatron.training.loss": ("gauge", ""),
    "megatron.training.throughput_tflops": ("gauge", ""),
    "megatron.training.grad_norm": ("gauge", ""),
    "megatron.training.skipped_iters": ("counter", ""),
    "megatron.training.learning_rate": ("gauge", ""),
    "megatron.training.tokens_per_sec": ("gauge", ""),
    "megatron.training.memory_allocated_gb": ("gauge", ""),
}
"""The instruments of Megatron-LM, in the order of record_training_metrics."""

EXTENSIONS = {
    "megatron.training.nonfinite": ("counter", "", ("signal",)),
    "megatron.training.iteration": ("gauge", "", ()),
    "megatron.training.target_iteration": ("gauge", "", ()),
    "megatron.training.consumed_tokens": ("gauge", "{token}", ()),
    "megatron.training.consumed_samples": ("gauge", "{sample}", ()),
    "megatron.training.validation_loss": ("gauge", "", ()),
    "megatron.training.loss_max": ("gauge", "", ()),
    "megatron.training.loss_scale": ("gauge", "", ()),
    "megatron.training.params_norm": ("gauge", "", ()),
    "megatron.training.num_zeros": ("gauge", "", ()),
    "megatron.training.global_batch_size": ("gauge", "", ()),
    "megatron.training.mfu": ("gauge", "1", ()),
    "megatron.training.data_loading_time": ("gauge", "s", ()),
    "megatron.training.data_loading_share": ("gauge", "1", ()),
    "megatron.memory.max_active": ("gauge", "By", ()),
    "megatron.memory.max_active_share": ("gauge", "1", ()),
    "megatron.memory.max_reserved": ("gauge", "By", ()),
    "megatron.memory.max_reserved_share": ("gauge", "1", ()),
    "megatron.memory.alloc_retries": ("counter", "", ()),
    "megatron.memory.ooms": ("counter", "", ()),
    "megatron.timer.duration": ("gauge", "s", ("phase", "agg")),
    "megatron.checkpoint.save_duration": ("histogram", "s", ()),
    "megatron.checkpoint.load_duration": ("histogram", "s", ()),
    "megatron.checkpoint.last_success_time": ("gauge", "s", ()),
    "megatron.checkpoint.last_iteration": ("gauge", "", ()),
    "megatron.checkpoint.failures": ("counter", "", ()),
    "megatron.evaluation.duration": ("histogram", "s", ()),
    "megatron.run.world_size": ("gauge", "", ()),
    "megatron.run.gpus_per_node": ("gauge", "", ()),
    "megatron.run.info": ("gauge", "", ("attempt", "tp", "pp", "dp", "precision", "model")),
    "megatron.run.config": ("gauge", "", ("option", "value")),
    "megatron.run.start_time": ("gauge", "s", ()),
    "megatron.run.phase": ("gauge", "", ("phase",)),
    "megatron.run.attempt": ("gauge", "", ()),
    "megatron.run.time": ("counter", "s", ("bucket",)),
    "megatron.span.duration": ("histogram", "s", ("span", "group")),
}


def entry(**changes: object) -> Metric:
    fields: dict[str, object] = {
        "name": "megatron.training.x",
        "kind": Kind.GAUGE,
        "unit": "none",
        "meaning": "A test.",
        "source": "a test",
    }
    return Metric(**{**fields, **changes})  # type: ignore[arg-type]


def test_core_is_what_megatron_emits() -> None:
    """The core metrics have Megatron-LM's names, kinds, units and order."""
    assert {m.name: (m.kind.value, m.otel_unit) for m in catalog.CORE} == MEGATRON
    assert [m.name for m in catalog.CORE] == list(MEGATRON)


def test_extensions_are_the_published_ones() -> None:
    """Our own metrics have the names, kinds, units and attributes that dashboards rely on."""
    assert {m.name: (m.kind.value, m.otel_unit, m.attributes) for m in catalog.EXTENSIONS} == EXTENSIONS


def test_every_constant_is_listed() -> None:
    """An entry that somebody adds is part of METRICS, once."""
    constants = [value for value in vars(catalog).values() if isinstance(value, Metric)]
    assert sorted(m.name for m in constants) == sorted(m.name for m in catalog.METRICS)
    assert len({m.name for m in catalog.METRICS}) == len(catalog.METRICS)


def test_short_names_are_unique() -> None:
    """A value in a record belongs to one metric."""
    assert len({m.short for m in catalog.METRICS}) == len(catalog.METRICS)
    assert catalog.MEMORY_MAX_ACTIVE.short == "memory_max_active"
    assert catalog.LOSS.short == "loss"


def test_signals_are_metrics() -> None:
    """What is counted as not finite is the loss and the gradient norm, by their short names."""
    assert (catalog.LOSS.short, catalog.GRAD_NORM.short) == catalog.SIGNALS


def test_run_time_has_the_published_buckets() -> None:
    """Time is booked in the six buckets that goodput is computed from."""
    assert catalog.RUN_TIME_BUCKETS == ("productive", "startup", "evaluate", "checkpoint", "restart", "stalled")


def test_step_bounds_reach_half_an_hour() -> None:
    """The quantile of a 200 s step is not cut off at OpenTelemetry's default of 10 s."""
    assert catalog.STEP_DURATION.bounds[0] == 1
    assert catalog.STEP_DURATION.bounds[-1] == 30 * 60 * 1000
    assert sum(10_000 < bound <= 200_000 for bound in catalog.STEP_DURATION.bounds) >= 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "training.loss"}, "lower-case words"),
        ({"name": "megatron.training.Loss"}, "lower-case words"),
        ({"name": "megatron.training.loss "}, "lower-case words"),
        ({"otel_unit": "seconds"}, "unit must be one of"),
        ({"kind": Kind.HISTOGRAM}, "bucket bounds"),
        ({"bounds": (1.0, 2.0)}, "bucket bounds"),
        ({"kind": Kind.HISTOGRAM, "bounds": (2.0, 1.0)}, "must rise"),
        ({"kind": Kind.HISTOGRAM, "bounds": (1.0, 1.0)}, "must rise"),
    ],
)
def test_nonsense_is_refused_at_birth(changes: dict[str, object], message: str) -> None:
    """An entry that no instrument could have is an error where it is written."""
    with pytest.raises(ValueError, match=message):
        entry(**changes)


@pytest.mark.parametrize(
    "attribute",
    [
        *(
            "iteration",
            "iter",
            "iterations",
            "train.iteration",
            "iteration_id",
            "megatron.iteration",
            "currentIteration",
            "iterationid",
            "iterno",
        ),
        *("step", "steps", "global_step", "globalStep", "step-number", "STEP", "step2", "timestep", "stepCount"),
        *("stepid", "stepno"),
        *("microbatch", "micro_batch_id", "micro-batch", "microBatch", "dl.microbatch_id", "microbatches"),
    ],
)
def test_an_attribute_that_names_a_moment_is_refused(attribute: str) -> None:
    """Iteration, step and microbatch never become a label, however they are spelt."""
    message = (
        rf"steps or microbatches apart \(got '{re.escape(attribute)}'\)\. Such a value belongs on a span or in a gauge"
    )
    with pytest.raises(ValueError, match=message):
        entry(attributes=("phase", attribute))


@pytest.mark.parametrize(
    "attribute", ["steppe", "stepwise", "reiterate", "iterator", "literal", "limiter", "batch", "micro"]
)
def test_an_attribute_that_only_sounds_like_a_moment_is_allowed(attribute: str) -> None:
    """Whole words are refused, not letters."""
    assert entry(attributes=(attribute,)).attributes == (attribute,)


def test_entries_are_frozen() -> None:
    """Nobody changes an entry later."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        catalog.LOSS.name = "megatron.training.lost"  # type: ignore[misc]


def test_get_offers_the_nearest_name() -> None:
    """A misspelt name is answered with the right one."""
    assert catalog.get("megatron.training.loss") is catalog.LOSS
    with pytest.raises(ValueError, match=r"'megatron\.training\.los' \(did you mean 'megatron\.training\.loss'\?\)"):
        catalog.get("megatron.training.los")
    with pytest.raises(ValueError, match=r"no metric 'x'\.$"):
        catalog.get("x")


def test_a_metric_of_ones_own_is_an_entry_and_a_call() -> None:
    """A user's entry is recorded like ours: declared as it says, with its attributes, listed nowhere."""
    expert_load = entry(name="megatron.moe.expert_load", otel_unit="1", unit="share", attributes=("expert",))
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("test")
    record(meter, expert_load, 0.25, {"expert": 3})
    data = reader.get_metrics_data()
    assert data is not None
    exported = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    own = exported["megatron.moe.expert_load"]
    assert (own.unit, own.description) == ("1", "A test.")
    assert [(point.value, point.attributes) for point in own.data.data_points] == [(0.25, {"expert": 3})]  # type: ignore[union-attr]
    reader.shutdown()


def test_names_are_written_once() -> None:
    """No other module of the emitter spells a metric name."""
    folder = Path(catalog.__file__).parent
    names = [m.name for m in catalog.METRICS]
    for path in folder.rglob("*.py"):
        if path.name != "catalog.py":
            text = path.read_text(encoding="utf-8")
            assert [name for name in names if name in text] == [], path
