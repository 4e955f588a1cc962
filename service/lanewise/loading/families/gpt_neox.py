"""GPT-NeoX and Pythia: attention and FFN side by side, each behind a LayerNorm of its own."""

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
from lanewise.loading.program import Attention, Layer, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL, CURVE = 0.25, "gelu"  # the share of each head that is turned, of configs without one
OLD_NAMES = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
OF_LAYER = {
    "input_layernorm": Role.ATTN_NORM,
    "post_attention_layernorm": Role.FFN_NORM,
    "attention.dense": Role.ATTN_OUTPUT,
    "mlp.dense_h_to_4h": Role.FFN_UP,
    "mlp.dense_4h_to_h": Role.FFN_DOWN,
}
# Masks that old files have.
UNUSED = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    names = {new: fields.raw(old) for old, new in OLD_NAMES.items() if fields.is_set(old)}
    fields = fields.replacing(names)
    bias = fields.flag("attention_bias", default=True)
    ffn = Plain(fields.integer("intermediate_size"), True, curve(fields, "hidden_act", CURVE))
    attention = replace(hf_attention(fields, sources, qkv_bias=bias), output_bias=bias)
    parallel = fields.flag("use_parallel_residual", default=True)
    layers = [layer_of(attention, ffn, parallel)] * hf_n_layers(fields, sources)
    eps = "layer_norm_eps"
    return hf_model(
        fields, "gpt_neox", layers, partial=PARTIAL, eps=eps, norm="layer", norm_bias=True
    )


def layer_of(attention: Attention, ffn: Plain, parallel: bool) -> Layer:
    """Return a layer whose attention and FFN are side by side, or one behind the other."""
    return Layer(attention, ffn, wiring="parallel" if parallel else "in_turn")


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names, and take Q, K and V of each head apart."""
    tensors = Rearranged(sources)
    give_roles(tensors, "gpt_neox.final_layer_norm", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder = f"gpt_neox.layers.{number}"
        tensors.drop(*(f"{folder}.{name}" for name in UNUSED))
        split_heads(tensors, f"{folder}.attention.query_key_value", config.heads, number)
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    arch = arch_of(fields)
    ffn = Plain(fields.integer(f"{arch}.feed_forward_length"), True, CURVE)
    attention = replace(gguf_attention(fields, sources, qkv_bias=True), output_bias=True)
    parallel = fields.flag(f"{arch}.use_parallel_residual", default=True)
    layers = [layer_of(attention, ffn, parallel)] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "gpt_neox", layers, norm="layer")


FAMILY = Family(
    "gpt_neox",
    from_hf,
    "gptneox",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
)
