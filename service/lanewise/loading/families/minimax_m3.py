"""MiniMax M3: clamped experts beside a shared one; in most layers an index chooses blocks.

An index head scores the blocks of tokens before a query, for the KV heads of its group, by the
largest product in each. The query's own block and perhaps some before it are always seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Gated, Layer, ModelConfig
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

ALPHA, LIMIT, SCALE = 1.702, 7.0, 2.0
ROTARY_DIM = 64  # where a config says none
TOKENS = 32  # of a block of the cache
INDEX_NORMS = (Role.INDEX_QUERY_NORM, Role.INDEX_KEY_NORM)
INDEX = (Role.INDEX_QUERY, Role.INDEX_KEY, *INDEX_NORMS)
NORMS = (Role.ATTN_NORM, Role.FFN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM, *INDEX_NORMS)
# The names of matrices and norms, in the order of INDEX.
INDEX_ENDS = ("q_proj", "k_proj", "q_norm", "k_norm")
SPARSE = "sparse_attention_config"
# Fields of the index: by transformers' names, and within sparse_attention_config.
INDEX_FIELDS = {
    "index_n_heads": ("sparse_num_index_heads", 4),
    "index_head_dim": ("sparse_index_dim", 128),
    "index_block_size": ("sparse_block_size", 128),
    "index_topk_blocks": ("sparse_topk_blocks", 16),
    "index_local_blocks": ("sparse_local_block", 1),
}
# Further ones within it, which ask for what is computed anyway.
SPARSE_ACCEPTED = {
    "sparse_init_block": (0,),
    "sparse_score_type": ("max",),
    "use_sparse_attention": (True,),
}
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
    layers = with_index(file, layers)
    return model_of(file, "minimax_m3_vl_text", layers, THETA, partial, own_kinds=True)


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


def with_index(file: ModelFile, layers: list[Layer]) -> list[Layer]:
    """Return the layers, some with an index, unless queries of all texts see all tokens."""
    chosen = chooses(file, len(layers))
    fields = file if file.is_gguf else published_index(file)
    must = file.is_gguf and any(chosen)
    numbers = {
        name: fields.integer(name, default=None if must else usual)
        for name, (_, usual) in INDEX_FIELDS.items()
    }
    block, blocks = numbers["index_block_size"], numbers["index_topk_blocks"]
    if block % TOKENS:
        raise fields.fail("index_block_size", f"a multiple of {TOKENS}")
    heads = {one.attention.n_kv_heads for one in layers if one.attention is not None}
    if any(kv % numbers["index_n_heads"] for kv in heads):
        raise fields.fail("index_n_heads", f"a divisor of the KV heads, {min(heads)},")
    if not 1 <= numbers["index_local_blocks"] <= blocks:
        raise fields.fail("index_local_blocks", f"1 to index_topk_blocks, {blocks},")
    if block * blocks >= file.integer("max_position_embeddings"):
        return layers
    index: dict[str, Any] = {
        "index_topk": block * blocks,
        "index_heads": numbers["index_n_heads"],
        "index_dim": numbers["index_head_dim"],
        "index_block": block,
        "index_local": numbers["index_local_blocks"],
    }
    return [
        replace(one, attention=replace(one.attention, **index))
        if has_index and one.attention is not None
        else one
        for one, has_index in zip(layers, chosen, strict=True)
    ]


def chooses(file: ModelFile, n_layers: int) -> list[bool]:
    """Return in which layers an index chooses what queries see."""
    if file.is_gguf:
        return [file.has(Role.INDEX_QUERY_NORM, number) for number in range(n_layers)]
    known: Mapping[Any, bool] = {"full_attention": False, "minimax_m3_sparse": True}
    key, found, own = "layer_types", file.raw("layer_types"), file
    given = file.raw(SPARSE)
    if isinstance(given, dict) and found is None:
        key, own, known = "sparse_attention_freq", within(file, given), {0: False, 1: True}
        found = given.get(key)
    if found is None:
        return [False] * n_layers
    if not isinstance(found, list) or len(found) < n_layers or {*found} - known.keys():
        raise own.fail(key, f"{n_layers} values, each {' or '.join(map(repr, known))}")
    return [known[one] for one in found[:n_layers]]


def within(file: ModelFile, given: Mapping[str, Any]) -> ModelFile:
    """Return the fields of a config within the file's."""
    return file.replacing(Fields(dict(given), f"{file.source}: {SPARSE}").values)


def published_index(file: ModelFile) -> ModelFile:
    """Return the file with the fields of the index by the names of either kind of config."""
    given = file.raw(SPARSE)
    if not isinstance(given, dict):
        return file
    own = within(file, given)
    check_values(own, SPARSE_ACCEPTED)
    return own.called({name: key for name, (key, _) in INDEX_FIELDS.items() if key in given})


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop layers that guess further tokens; stack experts, rename the index, add 1 to norms."""
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
        folder = f"model.layers.{layer}.self_attn"
        for role, name in zip(INDEX, INDEX_ENDS, strict=True):
            for old in (f"{folder}.index_{name}.weight", f"{folder}.indexer.{name}.weight"):
                tensors.rename(old, tensors.usual(role, layer))
    drop_unused_index(tensors, config)
    add_one_to_norms(tensors, config, NORMS)


def drop_unused_index(tensors: Rearranged, config: ModelConfig) -> None:
    """Leave out the tensors of an index that chooses nothing."""
    for number, layer in enumerate(config.layers):
        if layer.attention is not None and not layer.attention.index_heads:
            tensors.drop(*(tensors.usual(role, number) for role in INDEX))


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the index, make matrices of experts."""
    for layer in range(config.n_layers):
        for role, name in zip(INDEX, INDEX_ENDS, strict=True):
            tensors.rename(f"blk.{layer}.indexer.{name}.weight", tensors.usual(role, layer))
    drop_unused_index(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "minimax_m3_vl_text",
    program,
    "minimax-m3",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
