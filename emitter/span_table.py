"""Every span group and span name of Megatron-LM, with alias, attributes and types. Standard library only.

Megatron-LM's documentation and its code name some spans differently. Where both exist the documented name
is the one a span is measured under, and the emitted one an alias. The groups `trace_region` and `inference`
have no names here: the markers that fill them come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = (
    "job",
    "checkpoint",
    "evaluate",
    "model_init",
    "load_checkpoint",
    "step",
    "forward_backward",
    "optimizer",
    "microbatch",
    "layer",
    "communication",
    "activation_offload",
    "data_loading",
    "first_iteration",
    "trace_region",
    "inference",
)
"""What is switched on and off together."""

Attributes = tuple[tuple[str, type], ...]
"""Names of span attributes with the type of their values."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """A span that Megatron-LM's documentation or code names.

    Raises: ValueError if its group is none.
    """

    name: str
    group: str
    aliases: tuple[str, ...] = ()
    """Other names of the same span."""
    attributes: Attributes = ()
    goodput: bool = False
    """Whether Megatron-LM marks it with `is_goodput_span`."""

    def __post_init__(self) -> None:
        if self.group not in GROUPS:
            raise ValueError(
                f"emitter.span_table: {self.name!r}: the group must be one of {', '.join(GROUPS)} (got {self.group!r})."
            )


def _span(name: str, group: str, *aliases: str, attributes: Attributes = (), goodput: bool = False) -> Span:
    return Span(name=name, group=group, aliases=aliases, attributes=attributes, goodput=goodput)


_ITERATION: Attributes = (("megatron.iteration", int),)
_SNIFF_TEST: Attributes = (("megatron.sniff_test.tag", str),)

_JOB = (
    _span(
        "megatron.pretrain",
        "job",
        attributes=(
            ("megatron.model_type", str),
            ("megatron.train_iters", int),
            ("megatron.global_batch_size", int),
        ),
    ),
    _span("megatron.train", "job", attributes=(("megatron.train_iters", int),), goodput=True),
    _span("megatron.startup", "job", attributes=(("megatron.model_type", str),), goodput=True),
    _span("pre_startup", "job", goodput=True),
    _span("megatron.startup.launch_script", "job", goodput=True),
    _span("megatron.startup.container_load", "job", goodput=True),
    _span("megatron.startup.imports", "job", goodput=True),
    _span("megatron.startup.arg_parse", "job", goodput=True),
    _span("megatron.startup.inprocess_setup", "job", goodput=True),
    _span("megatron.startup.in_job_setup", "job", goodput=True),
    _span("megatron.startup.initialize_megatron", "job", goodput=True),
    _span("megatron.startup.jit_fusion_options", "job", goodput=True),
    _span("megatron.startup.sniff_test", "job", attributes=_SNIFF_TEST, goodput=True),
    _span("megatron.startup.weight_hash_check", "job", goodput=True),
    _span("megatron.train.sniff_test", "job", attributes=_SNIFF_TEST, goodput=True),
    _span("megatron.train.cuda_graph_capture", "job", attributes=_ITERATION, goodput=True),
)

_STARTUP = (
    _span("megatron.model_init", "model_init", "megatron.startup.model_init", goodput=True),
    _span("megatron.startup.dataloader", "data_loading", goodput=True),
    _span("megatron.load_checkpoint", "load_checkpoint", "megatron.checkpoint.load", goodput=True),
    _span("megatron.load_checkpoint.io_read", "load_checkpoint", "megatron.checkpoint.load.io_read", goodput=True),
    _span("megatron.train.first_iteration", "first_iteration", attributes=_ITERATION, goodput=True),
    _span("megatron.train.forward_pre_hook", "first_iteration", goodput=True),
)

_STEP = (
    _span(
        "megatron.train_step",
        "step",
        "megatron.train.iteration",
        attributes=(
            *_ITERATION,
            ("megatron.loss", float),
            ("megatron.grad_norm", float),
            ("megatron.skipped", bool),
        ),
        goodput=True,
    ),
    _span("megatron.train.iteration_report", "step", goodput=True),
    _span("megatron.train.log", "step", goodput=True),
    _span("megatron.train.params_norm", "step", goodput=True),
    _span("megatron.train.gc_collect", "step", goodput=True),
    _span("megatron.checkpoint.timers_log", "step", goodput=True),
    _span(
        "megatron.forward_backward",
        "forward_backward",
        "megatron.train.iteration.forward_backward",
        attributes=(("megatron.num_microbatches", int),),
    ),
    _span(
        "megatron.optimizer_step",
        "optimizer",
        "megatron.train.iteration.optimizer",
        attributes=(("megatron.grad_norm", float), ("megatron.update_successful", bool)),
    ),
)

_INSIDE_A_STEP = (
    _span("megatron.microbatch.forward", "microbatch", attributes=(("megatron.microbatch_id", int),)),
    _span("megatron.microbatch.backward", "microbatch"),
    _span("megatron.layer.forward", "layer", attributes=(("megatron.layer_number", int),)),
    _span("megatron.layer.self_attention", "layer"),
    _span("megatron.layer.mlp", "layer"),
    _span("megatron.layer.mamba", "layer"),
    _span(
        "megatron.pp.recv_forward.linked",
        "communication",
        attributes=(("dl.pipeline_parallel.rank", int), ("dl.microbatch_id", int)),
    ),
    _span("megatron.p2p.recv_forward", "communication"),
    _span("megatron.p2p.recv_backward", "communication"),
    _span("megatron.p2p.send_forward", "communication"),
    _span("megatron.p2p.send_backward", "communication"),
    _span("megatron.grad_sync.start", "communication"),
    _span("megatron.grad_sync.finish", "communication"),
    _span("megatron.activation.offload", "activation_offload"),
    _span("megatron.activation.reload", "activation_offload"),
)

_CHECKPOINT = (
    _span("megatron.checkpoint.exposed_save", "checkpoint", attributes=_ITERATION, goodput=True),
    _span("megatron.save_checkpoint", "checkpoint", "megatron.checkpoint.save", attributes=_ITERATION, goodput=True),
    _span("megatron.save_checkpoint.state_dict", "checkpoint", "megatron.checkpoint.save.state_dict", goodput=True),
    _span("megatron.save_checkpoint.io_write", "checkpoint", "megatron.checkpoint.save.io_write", goodput=True),
    _span("megatron.checkpoint.save.finalize", "checkpoint", goodput=True),
    _span("megatron.checkpoint.exit_finalize", "checkpoint", goodput=True),
    _span("megatron.checkpoint.reclaim_memory", "checkpoint", goodput=True),
    _span("megatron.checkpoint.report_memory", "checkpoint", goodput=True),
    _span("megatron.checkpoint.gc_collect", "checkpoint", goodput=True),
    _span("megatron.checkpoint.ft_heartbeat", "checkpoint", goodput=True),
)

_EVALUATE = (
    _span("megatron.evaluate", "evaluate", attributes=(("megatron.eval_iters", int),)),
    _span("megatron.evaluate.step", "evaluate", attributes=(("megatron.eval_iteration", int),)),
)

SPANS = _JOB + _STARTUP + _STEP + _INSIDE_A_STEP + _CHECKPOINT + _EVALUATE
_BY_NAME = {name: span for span in SPANS for name in (span.name, *span.aliases)}


def lookup(name: str) -> Span | None:
    """The span of a documented or emitted name."""
    return _BY_NAME.get(name)
