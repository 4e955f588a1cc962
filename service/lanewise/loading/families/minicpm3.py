"""MiniCPM 3: dense, with latent attention and the multipliers of MiniCPM."""

from __future__ import annotations

from lanewise.loading.families.common import hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import arch_of, gguf_gated, gguf_model, gguf_n_layers
from lanewise.loading.families.latent import (
    gguf_latent_attention,
    gguf_latent_tensors,
    hf_latent_attention,
    hf_latent_tensors,
)
from lanewise.loading.families.minicpm import hf_multiplied, multiplied
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

EMBEDDING, DEPTH, BASE = 12.0, 1.4, 256.0  # of MiniCPM3-4B, which GGUF files do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json; what each layer adds is divided by the root of their number."""
    n_layers = hf_n_layers(fields, sources)
    layer = Layer(hf_latent_attention(fields), hf_gated(fields, sources))
    config = hf_model(fields, "minicpm3", [layer] * n_layers, tied=True)
    return hf_multiplied(fields, config, EMBEDDING)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    arch = arch_of(fields)
    key = f"{arch}.attention.value_length"
    hidden = fields.integer(f"{arch}.embedding_length")
    heads = fields.integer(f"{arch}.attention.head_count")
    attention = gguf_latent_attention(
        fields.replacing({key: fields.integer(key, default=hidden // heads or 1)})
    )
    layer = Layer(attention, gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    config = gguf_model(fields, sources, "minicpm3", layers)
    return multiplied(config, EMBEDDING, DEPTH, BASE)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give matrices of heads their usual shapes."""
    tensors = Rearranged(sources)
    gguf_latent_tensors(tensors, config, GGUF)
    return tensors.out


FAMILY = Family(
    "minicpm3",
    from_hf,
    "minicpm3",
    from_gguf,
    hf_tensors=hf_latent_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
