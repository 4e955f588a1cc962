"""Arcee's foundation models: Llama with a plain FFN of squared relu."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import curve, has, hf_attention, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF
from lanewise.loading.program import Layer, ModelConfig, Plain
from lanewise.loading.sources import Sources

CURVE = "relu_squared"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(hf_attention(fields, sources), hf_plain(fields, sources))
    return hf_model(fields, "arcee", [layer] * hf_n_layers(fields, sources))


def hf_plain(fields: Fields, sources: Sources) -> Plain:
    """Return an FFN without a gate as config.json describes it, with the biases of the file."""
    bias = fields.flag("mlp_bias", default=False) or has(sources, Role.FFN_UP_BIAS, HF)
    return Plain(fields.integer("intermediate_size"), bias, curve(fields, "hidden_act", CURVE))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources), gguf_plain(fields, sources, CURVE))
    return gguf_model(fields, sources, "arcee", [layer] * gguf_n_layers(fields, sources))


def gguf_plain(fields: Fields, sources: Sources, activation: str) -> Plain:
    """Return an FFN without a gate as metadata describes it, with the biases of the file."""
    size = fields.integer(f"{arch_of(fields)}.feed_forward_length")
    return Plain(size, has(sources, Role.FFN_UP_BIAS, GGUF), activation)


FAMILY = Family("arcee", from_hf, "arcee", from_gguf, gguf_interleaved_rope=True)
