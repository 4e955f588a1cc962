"""Llama 2 and 3, and files that declare themselves `llama` (Mistral and Mixtral in GGUF)."""

from __future__ import annotations

from lanewise.loading.families import mixtral
from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    with_windows,
)
from lanewise.loading.families.experts import flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(hf_attention(fields, sources), hf_gated(fields, sources))
    return hf_model(fields, "llama", [layer] * hf_n_layers(fields, sources))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, also that of Mistral and Mixtral, which say that they are Llama."""
    if fields.integer(f"{arch_of(fields)}.expert_count", default=0, least=0):
        return mixtral.from_gguf(fields, sources)
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources))
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "llama", with_windows(layer, windows))


FAMILY = Family(
    "llama",
    from_hf,
    "llama",
    from_gguf,
    gguf_tensors=flatten_gguf_experts,
    gguf_interleaved_rope=True,
)
