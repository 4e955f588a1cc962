"""StarCoder 2: LayerNorm, biases everywhere, an FFN of gelu without a gate."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.arcee import gguf_plain
from lanewise.loading.families.common import (
    curve,
    hf_attention,
    hf_model,
    hf_n_layers,
    hf_window,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.families.naming import give_roles
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

CURVE = "gelu_tanh"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    bias = fields.flag("use_bias", default=True)
    ffn = Plain(fields.integer("intermediate_size"), bias, curve(fields, "hidden_act", CURVE))
    layer = Layer(hf_attention(fields, sources, qkv_bias=bias), ffn)
    layers = with_windows(layer, [hf_window(fields)] * hf_n_layers(fields, sources))
    eps = "norm_epsilon"
    return hf_model(fields, "starcoder2", layers, tied=True, eps=eps, norm="layer", norm_bias=True)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give the FFN's tensors their usual names."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        folder = f"model.layers.{number}.mlp"
        give_roles(tensors, f"{folder}.c_fc", Role.FFN_UP, number)
        give_roles(tensors, f"{folder}.c_proj", Role.FFN_DOWN, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, to which the converter does not write the window."""
    layer = Layer(gguf_attention(fields, sources), gguf_plain(fields, sources, CURVE))
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "starcoder2", with_windows(layer, windows), norm="layer")


FAMILY = Family(
    "starcoder2",
    from_hf,
    "starcoder2",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
)
