"""OLMo, the first one: Llama with LayerNorm without weights."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

EPS = 1e-5  # of all its norms, which configs do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    attention = replace(hf_attention(fields, sources), qkv_clip=hf_clip(fields))
    layer = Layer(attention, hf_gated(fields, sources))
    layers = [layer] * hf_n_layers(fields, sources)
    fields = fields.replacing({"layer_norm_eps": EPS})
    return hf_model(fields, "olmo", layers, eps="layer_norm_eps", norm="layer")


def hf_clip(fields: Fields) -> float:
    """Return what Q, K and V are limited to; null is nothing."""
    return round_to_f32(fields.number("clip_qkv", default=0.0))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    key = f"{arch_of(fields)}.attention.clamp_kqv"
    clip = round_to_f32(fields.number(key, default=0.0, zero=True))
    attention = replace(gguf_attention(fields, sources), qkv_clip=clip)
    layer = Layer(attention, gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "olmo", layers, norm="layer")


def with_weights(sources: Sources, config: ModelConfig, column: int) -> Sources:
    """Give norms weights that multiply by 1."""
    tensors = Rearranged(sources)
    names = [usual(Role.OUTPUT_NORM, 0, column)]
    for number in range(config.n_layers):
        names += [usual(role, number, column) for role in (Role.ATTN_NORM, Role.FFN_NORM)]
    for name in names:
        tensors.add_ones(name, config.hidden_size)
    return tensors.out


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms weights."""
    return with_weights(sources, config, HF)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms weights."""
    return with_weights(sources, config, GGUF)


FAMILY = Family(
    "olmo",
    from_hf,
    "olmo",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    gguf_is_usual=False,
)
