"""Falcon: attention and FFN in parallel after one or two LayerNorms; RW uses ALiBi instead."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig, Plain
from lanewise.loading.families.common import (
    attention_of,
    curve,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles, give_roles, split_heads
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

OLD_KEYS = {
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "num_kv_heads": "n_head_kv",
    "hidden_size": "n_embed",
}
OF_LAYER = {
    "input_layernorm": Role.ATTN_NORM,
    "ln_attn": Role.ATTN_NORM,
    "ln_mlp": Role.FFN_NORM,
    "post_attention_layernorm": Role.FFN_NORM,
    "self_attention.dense": Role.ATTN_OUTPUT,
    "mlp.dense_h_to_4h": Role.FFN_UP,
    "mlp.dense_4h_to_h": Role.FFN_DOWN,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file; flags of several versions occur in config.json."""
    file = file.called_if_set(OLD_KEYS)
    if not file.is_gguf:
        file = file.replacing({"num_key_value_heads": n_kv_heads(file)})
    bias = file.flag("bias", default=False)
    attention = replace(attention_of(file, qkv_bias=bias), output_bias=bias)
    if file.flag("alibi", default=False):
        attention = replace(attention, rope=None, alibi=True, scaled_alibi=True)
    size = file.integer("ffn_hidden_size", default=4 * file.integer("hidden_size"))
    ffn = Plain(size, bias, curve(file, "activation", "gelu"))
    layers = [Layer(attention, ffn, wiring=wiring_of(file))] * n_layers_of(file)
    eps = "layer_norm_epsilon"
    return model_of(file, "falcon", layers, tied=True, eps=eps, norm="layer", norm_bias=True)


def n_kv_heads(file: ModelFile) -> int:
    """Return the number of KV heads: in the old architecture 1 or the number of heads."""
    n_heads = file.integer("num_attention_heads")
    given = file.integer("num_kv_heads", default=n_heads)
    single = file.flag("multi_query", default=True)
    if file.flag("new_decoder_architecture", default=False):
        return given
    return 1 if single else n_heads


def wiring_of(file: ModelFile) -> str:
    """Return whether attention and FFN are parallel, and after how many norms."""
    if file.is_gguf:  # the tensors tell
        two = "blk.0.attn_norm_2.weight" in file.tensors
        return "parallel" if two else "parallel_one_norm"
    parallel = file.flag("parallel_attn", default=True)
    new = file.flag("new_decoder_architecture", default=False)
    n_norms = file.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    if not parallel:
        if new:
            raise file.fail("parallel_attn", "true, of the new architecture,")
        return "in_turn"
    return "parallel" if n_norms == 2 and new else "parallel_one_norm"


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, and split Q, K and V, which are interleaved by group of heads."""
    give_roles(tensors, "transformer.ln_f", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        name = f"transformer.h.{number}.self_attention.query_key_value"
        split_heads(tensors, name, config.heads, number)
    give_layer_roles(tensors, config, OF_LAYER, "transformer.h.{}.")


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split Q, K and V; of two norms the second is attention's."""
    for number, layer in enumerate(config.layers):
        if layer.wiring == "parallel":
            give_roles(tensors, f"blk.{number}.attn_norm", Role.FFN_NORM, number)
            give_roles(tensors, f"blk.{number}.attn_norm_2", Role.ATTN_NORM, number)


FAMILY = Family(
    "falcon",
    program,
    "falcon",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
