"""Nemotron and Minitron, dense: LayerNorm, squared relu without a gate, half-turned heads."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.arcee import CURVE, gguf_plain, hf_plain
from lanewise.loading.families.common import hf_attention, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import gguf_attention, gguf_model, gguf_n_layers
from lanewise.loading.families.naming import add_one_to_norms
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL = 0.5  # of each head is turned, where the config does not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(hf_attention(fields, sources), hf_plain(fields, sources))
    layers = [layer] * hf_n_layers(fields, sources)
    eps = "norm_eps"
    return hf_model(
        fields, "nemotron", layers, partial=PARTIAL, eps=eps, norm="layer", norm_bias=True
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Add the 1 that files leave out of norms."""
    tensors = Rearranged(sources)
    add_one_to_norms(tensors, config, (Role.ATTN_NORM, Role.FFN_NORM))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    layer = Layer(gguf_attention(fields, sources), gguf_plain(fields, sources, CURVE))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "nemotron", layers, norm="layer")


FAMILY = Family(
    "nemotron",
    from_hf,
    "nemotron",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
)
