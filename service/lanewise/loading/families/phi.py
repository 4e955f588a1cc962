"""Phi-1, 1.5 and 2: attention and FFN side by side behind one LayerNorm, biases everywhere."""

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
from lanewise.loading.families.naming import give_roles
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Layer, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL, CURVE = 0.5, "gelu_tanh"  # the share of each head that is turned, of configs without one
OF_LAYER = {
    "self_attn.dense": Role.ATTN_OUTPUT,
    "mlp.fc1": Role.FFN_UP,
    "mlp.fc2": Role.FFN_DOWN,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    if fields.flag("qk_layernorm", default=False):
        raise fields.fail("qk_layernorm", "false (LayerNorm of queries and keys is not supported)")
    ffn = Plain(fields.integer("intermediate_size"), True, curve(fields, "hidden_act", CURVE))
    attention = replace(hf_attention(fields, sources, qkv_bias=True), output_bias=True)
    layers = [beside(attention, ffn)] * hf_n_layers(fields, sources)
    eps = "layer_norm_eps"
    config = hf_model(fields, "phi", layers, partial=PARTIAL, eps=eps, norm="layer", norm_bias=True)
    return replace(config, output_bias=True)


def beside(attention: Attention, ffn: Plain) -> Layer:
    """Return a layer whose attention and FFN read the same norm."""
    return Layer(attention, ffn, wiring="parallel_one_norm")


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = Rearranged(sources)
    give_roles(tensors, "model.final_layernorm", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"model.layers.{number}.{name}", role, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffn = Plain(fields.integer(f"{arch_of(fields)}.feed_forward_length"), True, CURVE)
    attention = replace(gguf_attention(fields, sources, qkv_bias=True), output_bias=True)
    layers = [beside(attention, ffn)] * gguf_n_layers(fields, sources)
    config = gguf_model(fields, sources, "phi", layers, norm="layer")
    return replace(config, output_bias=True)


FAMILY = Family(
    "phi",
    from_hf,
    "phi2",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
)
