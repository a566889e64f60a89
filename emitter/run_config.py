"""The options of a run that are worth comparing, as text without secrets. Standard library only."""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from numbers import Integral, Real

Options = Mapping[str, object] | argparse.Namespace
"""Settings of a training program: Megatron-LM's arguments, or a dictionary."""

_ALLOWED = {
    "optimizer and its schedule": """
        optimizer lr min_lr lr_decay_style lr_decay_iters lr_decay_samples lr_warmup_iters lr_warmup_samples
        lr_warmup_fraction lr_warmup_init lr_wsd_decay_style lr_wsd_decay_iters decoupled_lr decoupled_min_lr
        learning_rate lr_scheduler_type warmup_steps warmup_ratio weight_decay start_weight_decay end_weight_decay
        weight_decay_incr_style adam_beta1 adam_beta2 adam_eps betas eps sgd_momentum momentum muon_momentum
        muon_num_ns_steps muon_scale_mode muon_extra_scale_factor clip_grad max_grad_norm max_norm
    """,
    "length, batches and data": """
        train_iters train_samples max_steps steps epochs num_train_epochs global_batch_size micro_batch_size
        local_batch_size batch_size rampup_batch_size gradient_accumulation_steps seq_length seq_len
        decoder_seq_length max_position_embeddings seed eval_iters eval_interval save_interval log_interval split
        dataloader_type num_workers reset_position_ids reset_attention_mask eod_mask_loss
    """,
    "model": """
        num_layers encoder_num_layers decoder_num_layers hidden_size ffn_hidden_size num_attention_heads
        num_key_value_heads group_query_attention num_query_groups kv_channels vocab_size padded_vocab_size
        make_vocab_size_divisible_by untie_embeddings_and_output_weights normalization norm_epsilon swiglu
        squared_relu activation position_embedding_type rotary_base rotary_percent use_rope_scaling
        rope_scaling_factor window_size attention_dropout hidden_dropout dropout init_method_std qk_layernorm
        multi_latent_attention q_lora_rank kv_lora_rank mtp_num_layers hybrid_layer_pattern model_type
        tokenizer_type disable_bias_linear
    """,
    "experts": """
        num_experts moe_router_topk moe_router_load_balancing_type moe_aux_loss_coeff moe_z_loss_coeff
        moe_ffn_hidden_size moe_shared_expert_intermediate_size moe_layer_freq moe_grouped_gemm
        moe_token_dispatcher_type moe_expert_capacity_factor moe_permute_fusion
    """,
    "precision": """
        precision fp16 bf16 fp8 fp4 fp8_recipe fp8_margin fp8_param_gather params_dtype loss_scale
        initial_loss_scale min_loss_scale loss_scale_window hysteresis attention_softmax_in_fp32
        accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 use_precision_aware_optimizer main_grads_dtype
        main_params_dtype exp_avg_dtype exp_avg_sq_dtype mixed_precision_param mixed_precision_reduce
    """,
    "parallelism": """
        world_size tensor_model_parallel_size pipeline_model_parallel_size
        virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage context_parallel_size
        expert_model_parallel_size expert_tensor_parallel_size data_parallel_size sequence_parallel
        tensor_parallel_degree pipeline_parallel_degree context_parallel_degree expert_parallel_degree
        data_parallel_shard_degree data_parallel_replicate_degree cp_comm_type use_distributed_optimizer
        num_distributed_optimizer_instances use_megatron_fsdp use_torch_fsdp2 data_parallel_sharding_strategy
        overlap_grad_reduce overlap_param_gather overlap_p2p_comm tp_comm_overlap delay_wgrad_compute
        overlap_moe_expert_parallel_comm ddp_bucket_size ddp_average_in_collective
    """,
    "speed and memory": """
        recompute_activations recompute_granularity recompute_method recompute_num_layers recompute_modules
        use_flash_attn attention_backend transformer_impl gradient_accumulation_fusion cross_entropy_loss_fusion
        masked_softmax_fusion bias_dropout_fusion enable_cuda_graph cuda_graph_impl optimizer_cpu_offload
        optimizer_offload_fraction cpu_offloading compile activation_checkpoint_mode
    """,
    "checkpoints": """
        ckpt_format dist_ckpt_format async_save ckpt_fully_parallel_save ckpt_assume_constant_structure
    """,
}

ALLOWED_OPTIONS = frozenset(name for names in _ALLOWED.values() for name in names.split())
"""Names that Megatron-LM, torchtitan and common training loops give to what decides about a run's results and speed."""

VALUE_LIMIT = 120
"""Characters of a value that are kept."""

_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_NAMES = {
    *("token", "secret", "password", "passwd", "passphrase", "key", "apikey", "credential", "header", "headers"),
    *("auth", "authorization", "cookie", "secrets", "passwords", "keys", "apikeys", "credentials"),
}
_PLAIN = re.compile(r"(?:\w|[ .,+*|()\[\]{}<>%-])+")
"""Characters of a value: nothing that a URL, a path, an address, a header or an assignment is made with."""
_TOKEN = re.compile(
    r"hf_\w|sk-[\w-]{8}|[rs]k_(?:live|test)_|gh[oprsu]_\w|github_pat_|glpat-|xox[abeprs]-|nvapi-|npm_\w|pypi-\w"
    r"|do[opr]_v1_|dckr_pat_|gsk_\w|hvs\.|lin_api_|AIza\w|(?:AKIA|ASIA)[A-Z0-9]|eyJ"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}"  # a UUID
    r"|(?i:\b(?:bearer|basic)\s+\S|passw|secret|credential|api.?key)"
)
_RUN = re.compile(r"[A-Za-z0-9_+-]{16,}")
_UNBROKEN = re.compile(r"[A-Za-z0-9]{20,}")
_NUMBER_LIMIT = 2**63

_log = logging.getLogger(__name__)


def run_config(options: Options, more: Iterable[str] = ()) -> dict[str, str]:
    """The options of a run that are worth comparing: those of the allow-list and `more`, by name.

    Numbers, switches, short words and lists of them are taken; whatever may be a secret, a path or an address is
    left out, and so is None.

    Raises: ValueError if `more` names what may hold a secret, or what is no option's name.
    """
    given = as_mapping(options)
    names = ALLOWED_OPTIONS | _checked(more)
    config: dict[str, str] = {}
    left_out: list[str] = []
    for name in sorted(names & given.keys()):
        value = given[name]
        text = None if value is None else safe_text(value)
        if text is not None:
            config[name] = text
        elif value is not None:
            left_out.append(name)
    if left_out:
        _log.debug("emitter.run_config: left out, as no plain values: %s.", ", ".join(left_out))
    return config


def as_mapping(options: Options | None) -> Mapping[str, object]:
    """Options by name, however a program keeps them."""
    if options is None:
        return {}
    return options if isinstance(options, Mapping) else vars(options)


def safe_text(value: object) -> str | None:
    """A value as text of at most 120 characters; None if it is not plain, or may be a secret."""
    if isinstance(value, list | tuple):
        items = [_plain_text(item) for item in value[:VALUE_LIMIT]]  # more cannot be shown
        text = None if None in items else ", ".join(filter(None, items))
    else:
        text = _plain_text(value)
    if text is None or not _PLAIN.fullmatch(text) or not text.strip() or _may_be_secret(text):
        return None
    return text[:VALUE_LIMIT].strip()


def _plain_text(value: object) -> str | None:
    if isinstance(value, str):
        return str.__str__(value)  # what a subclass makes of itself is not looked at
    if isinstance(value, bool):
        return str(value)
    if not isinstance(value, Real):
        return None
    try:
        if isinstance(value, Integral):
            return str(int(value)) if abs(int(value)) < _NUMBER_LIMIT else None
        return repr(float(value))
    except Exception:  # a number-like object of the training program's that fails is left out
        return None


def _may_be_secret(text: str) -> bool:
    return bool(_TOKEN.search(text)) or any(_looks_random(run) for run in _RUN.findall(text))


def _looks_random(run: str) -> bool:
    """Whether a long word is mixed or unbroken as no name is: by changes of kind, by capitals, by length."""
    pairs = list(pairwise(run))
    changes = sum(one.islower() and other.isupper() for one, other in pairs)  # the other way round, a word begins
    changes += sum(one.isdigit() != other.isdigit() and one.isalnum() and other.isalnum() for one, other in pairs)
    capitals = sum(map(str.isupper, run))
    if changes * 4 >= len(run) or (
        len(run) >= 20 and capitals >= 0.3 * len(run) and run != run.upper() and len(set(run)) >= 12
    ):
        return True
    unbroken = max(_UNBROKEN.findall(run), key=len, default="")
    return len(set(unbroken)) >= 8 and (len(unbroken) >= 32 or not unbroken.isalpha() or unbroken.isupper())


def _checked(more: Iterable[str]) -> set[str]:
    if isinstance(more, str):
        raise ValueError(f"emitter.run_config: more must be a list of names (got {more!r}). Write [{more!r}].")
    names = set(more)
    for name in names - ALLOWED_OPTIONS:
        if not isinstance(name, str) or not _OPTION.fullmatch(name):
            raise ValueError(
                f"emitter.run_config: an option's name has letters, digits, '_', '.' and '-' (got {name!r}). Rename it."
            )
        if words := _SECRET_NAMES.intersection(word.lower() for word in _WORD.findall(name)):
            raise ValueError(
                f"emitter.run_config: an option that may hold a secret is not exported (got {name!r}, "
                f"which says {min(words)!r}). Leave it out."
            )
    return names
