"""Falcon: attention and FFN side by side behind one LayerNorm or two; RW has ALiBi instead."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import curve, hf_attention, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import give_roles, split_heads
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

CURVE = "gelu"
OLD_NAMES = {
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_head_kv": "num_kv_heads",
    "n_embed": "hidden_size",
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


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    fields = fields.replacing(
        {new: fields.raw(old) for old, new in OLD_NAMES.items() if fields.is_set(old)}
    )
    hidden, bias = fields.integer("hidden_size"), fields.flag("bias", default=False)
    fields = fields.replacing({"num_key_value_heads": n_kv_heads(fields)})
    attention = replace(hf_attention(fields, sources, qkv_bias=bias), output_bias=bias)
    if fields.flag("alibi", default=False):
        attention = replace(attention, rope=None, alibi=True, scaled_alibi=True)
    size = fields.integer("ffn_hidden_size", default=4 * hidden)
    layer = Layer(
        attention, Plain(size, bias, curve(fields, "activation", CURVE)), wiring=wiring(fields)
    )
    return hf_model(
        fields,
        "falcon",
        [layer] * hf_n_layers(fields, sources),
        tied=True,
        eps="layer_norm_epsilon",
        norm="layer",
        norm_bias=True,
    )


def n_kv_heads(fields: Fields) -> int:
    """Return how many there are: of the old architecture one, or as many as others."""
    n_heads = fields.integer("num_attention_heads")
    given = fields.integer("num_kv_heads", default=n_heads)
    single = fields.flag("multi_query", default=True)
    if fields.flag("new_decoder_architecture", default=False):
        return given
    return 1 if single else n_heads


def wiring(fields: Fields) -> str:
    """Return whether attention and FFN are side by side, and behind how many norms."""
    parallel = fields.flag("parallel_attn", default=True)
    new = fields.flag("new_decoder_architecture", default=False)
    n_norms = fields.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    if not parallel:
        if new:
            raise fields.fail("parallel_attn", "true, of the new architecture,")
        return "in_turn"
    return "parallel" if n_norms == 2 and new else "parallel_one_norm"


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names, and take Q, K and V of each group of heads apart."""
    tensors = Rearranged(sources)
    give_roles(tensors, "transformer.ln_f", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder = f"transformer.h.{number}"
        split_heads(tensors, f"{folder}.self_attention.query_key_value", config.heads, number)
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffn = Plain(fields.integer(f"{arch_of(fields)}.feed_forward_length"), activation=CURVE)
    two = "blk.0.attn_norm_2.weight" in sources
    kind = "parallel" if two else "parallel_one_norm"
    layer = Layer(gguf_attention(fields, sources), ffn, wiring=kind)
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "falcon", layers, norm="layer")


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take Q, K and V apart; of two norms the second is attention's."""
    tensors = Rearranged(sources)
    for number, layer in enumerate(config.layers):
        if layer.wiring == "parallel":
            give_roles(tensors, f"blk.{number}.attn_norm", Role.FFN_NORM, number, GGUF)
            give_roles(tensors, f"blk.{number}.attn_norm_2", Role.ATTN_NORM, number, GGUF)
    return tensors.out


FAMILY = Family(
    "falcon",
    from_hf,
    "falcon",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
