"""The table of spans against names written by hand from Megatron-LM's documentation and code."""

from __future__ import annotations

import pytest

from emitter.span_table import GROUPS, SPANS, Span, lookup

DOCUMENTED = {
    "megatron.pretrain": "job",
    "megatron.model_init": "model_init",
    "megatron.load_checkpoint": "load_checkpoint",
    "megatron.load_checkpoint.io_read": "load_checkpoint",
    "megatron.train": "job",
    "megatron.train_step": "step",
    "megatron.forward_backward": "forward_backward",
    "megatron.microbatch.forward": "microbatch",
    "megatron.layer.forward": "layer",
    "megatron.layer.self_attention": "layer",
    "megatron.layer.mlp": "layer",
    "megatron.microbatch.backward": "microbatch",
    "megatron.pp.recv_forward.linked": "communication",
    "megatron.p2p.recv_forward": "communication",
    "megatron.p2p.recv_backward": "communication",
    "megatron.p2p.send_forward": "communication",
    "megatron.p2p.send_backward": "communication",
    "megatron.activation.offload": "activation_offload",
    "megatron.activation.reload": "activation_offload",
    "megatron.grad_sync.start": "communication",
    "megatron.grad_sync.finish": "communication",
    "megatron.optimizer_step": "optimizer",
    "megatron.save_checkpoint": "checkpoint",
    "megatron.save_checkpoint.state_dict": "checkpoint",
    "megatron.save_checkpoint.io_write": "checkpoint",
    "megatron.evaluate": "evaluate",
    "megatron.evaluate.step": "evaluate",
}

EMITTED_AS = {
    "megatron.startup.model_init": "megatron.model_init",
    "megatron.checkpoint.load": "megatron.load_checkpoint",
    "megatron.checkpoint.load.io_read": "megatron.load_checkpoint.io_read",
    "megatron.checkpoint.save": "megatron.save_checkpoint",
    "megatron.checkpoint.save.state_dict": "megatron.save_checkpoint.state_dict",
    "megatron.checkpoint.save.io_write": "megatron.save_checkpoint.io_write",
    "megatron.train.iteration": "megatron.train_step",
    "megatron.train.iteration.forward_backward": "megatron.forward_backward",
    "megatron.train.iteration.optimizer": "megatron.optimizer_step",
}

EMITTED_ONLY = {
    "pre_startup": "job",
    "megatron.startup": "job",
    "megatron.startup.launch_script": "job",
    "megatron.startup.container_load": "job",
    "megatron.startup.imports": "job",
    "megatron.startup.arg_parse": "job",
    "megatron.startup.inprocess_setup": "job",
    "megatron.startup.in_job_setup": "job",
    "megatron.startup.initialize_megatron": "job",
    "megatron.startup.jit_fusion_options": "job",
    "megatron.startup.sniff_test": "job",
    "megatron.startup.weight_hash_check": "job",
    "megatron.startup.dataloader": "data_loading",
    "megatron.train.sniff_test": "job",
    "megatron.train.cuda_graph_capture": "job",
    "megatron.train.first_iteration": "first_iteration",
    "megatron.train.forward_pre_hook": "first_iteration",
    "megatron.train.iteration_report": "step",
    "megatron.train.log": "step",
    "megatron.train.params_norm": "step",
    "megatron.train.gc_collect": "step",
    "megatron.checkpoint.timers_log": "step",
    "megatron.checkpoint.exposed_save": "checkpoint",
    "megatron.checkpoint.save.finalize": "checkpoint",
    "megatron.checkpoint.exit_finalize": "checkpoint",
    "megatron.checkpoint.reclaim_memory": "checkpoint",
    "megatron.checkpoint.report_memory": "checkpoint",
    "megatron.checkpoint.gc_collect": "checkpoint",
    "megatron.checkpoint.ft_heartbeat": "checkpoint",
    "megatron.layer.mamba": "layer",
}

ATTRIBUTES = {
    "megatron.pretrain": {
        "megatron.model_type": str,
        "megatron.train_iters": int,
        "megatron.global_batch_size": int,
    },
    "megatron.train_step": {
        "megatron.iteration": int,
        "megatron.loss": float,
        "megatron.grad_norm": float,
        "megatron.skipped": bool,
    },
    "megatron.save_checkpoint": {"megatron.iteration": int},
    "megatron.optimizer_step": {"megatron.grad_norm": float, "megatron.update_successful": bool},
    "megatron.forward_backward": {"megatron.num_microbatches": int},
    "megatron.microbatch.forward": {"megatron.microbatch_id": int},
    "megatron.evaluate": {"megatron.eval_iters": int},
    "megatron.pp.recv_forward.linked": {"dl.pipeline_parallel.rank": int, "dl.microbatch_id": int},
}

NO_GOODPUT = {
    *("megatron.pretrain", "megatron.forward_backward", "megatron.optimizer_step", "megatron.evaluate"),
    *(name for name in DOCUMENTED if name.startswith(("megatron.microbatch.", "megatron.layer.", "megatron.p"))),
    *("megatron.activation.offload", "megatron.activation.reload", "megatron.evaluate.step", "megatron.layer.mamba"),
    *("megatron.grad_sync.start", "megatron.grad_sync.finish"),
}


def test_the_table_is_the_documentation_and_the_code() -> None:
    """Every span that is documented or emitted is in the table, in its group, and no other."""
    assert {span.name: span.group for span in SPANS} == {**DOCUMENTED, **EMITTED_ONLY}


@pytest.mark.parametrize(("emitted", "documented"), EMITTED_AS.items())
def test_an_emitted_name_leads_to_the_documented_one(emitted: str, documented: str) -> None:
    """Under either name the same span is found, and its own name is the documented one."""
    span = lookup(emitted)
    assert span is lookup(documented)
    assert span is not None
    assert span.name == documented


def test_a_name_is_one_span() -> None:
    """No name and no alias is in the table twice, and there is no alias that the code does not emit."""
    names = [name for span in SPANS for name in (span.name, *span.aliases)]
    assert len(names) == len(set(names))
    assert {alias for span in SPANS for alias in span.aliases} == set(EMITTED_AS)


@pytest.mark.parametrize("name", ["", "megatron", "megatron.train.", "MEGATRON.TRAIN", "megatron.layer.7"])
def test_unknown_names_are_nothing(name: str) -> None:
    """A name that is only nearly in the table is not in it."""
    assert lookup(name) is None


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_have_names_and_types(name: str) -> None:
    """A span declares the attributes of the contract with their types."""
    span = lookup(name)
    assert span is not None
    assert dict(span.attributes) == ATTRIBUTES[name]


def test_goodput_is_what_megatron_marks() -> None:
    """The work of a step and evaluations are unmarked; start-up, steps and checkpoints count."""
    assert {span.name for span in SPANS if not span.goodput} == NO_GOODPUT


def test_a_span_is_of_a_group() -> None:
    """A group that does not exist is refused, with those that do."""
    with pytest.raises(ValueError, match=r"^emitter\.span_table: 'x': .* job, checkpoint, .* \(got 'jobs'\)\.$"):
        Span(name="x", group="jobs")
    assert len(GROUPS) == len(set(GROUPS)) == 16
