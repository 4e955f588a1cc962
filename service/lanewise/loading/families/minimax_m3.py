"""MiniMax M3's language model: clamped experts beside a shared one, some layers without experts.

Its sparse attention sees the blocks of tokens of the largest index scores. Up to as many tokens as
these blocks have, that is all of them: longer texts are not computed, and the index is not read.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Gated, ModelConfig
from lanewise.loading.families import mixtral
from lanewise.loading.families.common import attention_of, check_values, model_of, n_layers_of
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
    rename_shared,
    sparse_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.minimax_m2 import THETA, partial_of
from lanewise.loading.families.naming import add_one_to_norms, split_gate_and_up
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

logger = logging.getLogger(__name__)

ALPHA, LIMIT, SCALE = 1.702, 7.0, 2.0
BLOCK, BLOCKS = 128, 16  # tokens of a block, and blocks that a query sees
ROTARY_DIM = 64  # where a config says none
NORMS = (Role.ATTN_NORM, Role.FFN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM)
INDEX = (
    *("indexer.q_proj", "indexer.k_proj", "indexer.q_norm", "indexer.k_norm"),
    *("index_q_proj", "index_k_proj", "index_q_norm", "index_k_norm"),
)
NAMES = ("index_block_size", "index_topk_blocks")
PUBLISHED_NAMES = ("sparse_block_size", "sparse_topk_blocks")
GGUF_HARMLESS = ("head_count", "key_length", "local_blocks")
# Further fields of published files, which ask for what is computed anyway.
ACCEPTED = {
    "hidden_act": ("swigluoai", "silu"),
    "scoring_func": ("sigmoid",),
    "qk_norm_type": ("per_head",),
    "use_gemma_norm": (True,),
    "use_qk_norm": (True,),
    "use_routing_bias": (True,),
    "attention_output_gate": (False,),
    "n_shared_experts": (1,),
}
GGUF_INDEX = ("q_proj", "k_proj", "q_norm", "k_norm")


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, ACCEPTED)
    clamped: dict[str, Any] = {
        "activation": "clamped",
        "limit": round_to_f32(file.number("swiglu_limit", default=LIMIT)),
        "alpha": round_to_f32(file.number("swiglu_alpha", default=ALPHA)),
    }
    experts = experts_of(
        *(file, "sigmoid", True),
        n="num_local_experts",
        size="intermediate_size",
        choice_bias=True,
        scale=round_to_f32(file.number("routed_scaling_factor", default=SCALE)),
        shared_size=0 if file.is_gguf else file.integer("shared_intermediate_size"),
        **clamped,
    )
    key = "intermediate_size" if file.is_gguf else "dense_intermediate_size"
    attention = attention_of(file, qk_norm="head")
    layers = sparse_layers(
        attention, experts, Gated(file.integer(key), **clamped), sparse_layers_of(file)
    )
    partial = partial_of(file, attention.head_dim, None if file.is_gguf else ROTARY_DIM)
    model = model_of(file, "minimax_m3_vl_text", layers, THETA, partial, own_kinds=True)
    seen = seen_tokens(file)
    if seen < model.context_length:
        logger.warning(
            "%s: texts of at most %d tokens are taken: of longer ones, which queries see, an index"
            " decides that is not supported",
            *(file.source, seen),
        )
    return replace(model, context_length=min(model.context_length, seen))


def sparse_layers_of(file: ModelFile) -> list[bool]:
    """Return which layers have experts."""
    n_layers = n_layers_of(file)
    if file.is_gguf:
        return [file.has(Role.ROUTER, number) for number in range(n_layers)]
    if file.is_set("mlp_layer_types"):
        key, found = "mlp_layer_types", file.raw("mlp_layer_types")
        known: dict[Any, bool] = {"dense": False, "sparse": True}
    else:
        key, found = "moe_layer_freq", file.raw("moe_layer_freq")
        known = {0: False, 1: True}
        if found is None:
            return [True] * n_layers
    if not isinstance(found, list) or len(found) < n_layers or {*found} - known.keys():
        raise file.fail(key, f"{n_layers} values, each {' or '.join(map(repr, known))}")
    return [known[one] for one in found[:n_layers]]


def seen_tokens(file: ModelFile) -> int:
    """Return how many tokens a text may have of which each query sees all before it."""
    if file.is_gguf:
        file.ignore(*(f"{{arch}}.attention.indexer.{end}" for end in GGUF_HARMLESS))
        blocks = file.integer("{arch}.attention.indexer.block_size"), file.integer("index_topk")
        return blocks[0] * blocks[1]
    file.ignore("layer_types", "index_n_heads", "index_head_dim", "index_local_blocks")
    names, own, given = NAMES, file, file.raw("sparse_attention_config")
    if isinstance(given, dict):
        named = Fields(given, f"{file.source}: sparse_attention_config")
        names, own = PUBLISHED_NAMES, file.replacing(named.values)
    kinds = file.raw("layer_types") or own.raw("sparse_attention_freq") or []
    if not any(kind not in (0, "full_attention") for kind in kinds):
        return file.integer("max_position_embeddings")
    blocks = (own.integer(names[0], default=BLOCK), own.integer(names[1], default=BLOCKS))
    return blocks[0] * blocks[1]


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop the index and layers that guess further tokens; stack experts, add the 1 of norms."""
    tensors.drop_layers_from(config.n_layers)
    split_gate_and_up(tensors, config)
    mixtral.hf_tensors(tensors, config)
    for layer, experts in layers_of_experts(config):
        for folder in (mixtral.FOLDER, "mlp"):
            rename_shared(tensors, layer, f"{folder}.shared_experts")
            for name in ("e_score_correction_bias", "gate.e_score_correction_bias"):
                bias = f"model.layers.{layer}.{folder}.{name}"
                tensors.rename(bias, tensors.usual(Role.ROUTER_CHOICE_BIAS, layer))
            fused = f"model.layers.{layer}.{folder}.shared_experts.gate_up_proj.weight"
            roles = (Role.SHARED_GATE, Role.SHARED_UP)
            parts = {tensors.usual(role, layer): experts.shared_size for role in roles}
            tensors.split_rows(fused, parts)
    for layer in range(config.n_layers):
        tensors.drop(*(f"model.layers.{layer}.self_attn.{name}.weight" for name in INDEX))
    add_one_to_norms(tensors, config, NORMS)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop the index, make matrices of experts."""
    for layer in range(config.n_layers):
        tensors.drop(*(f"blk.{layer}.indexer.{name}.weight" for name in GGUF_INDEX))
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "minimax_m3_vl_text",
    program,
    "minimax-m3",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
