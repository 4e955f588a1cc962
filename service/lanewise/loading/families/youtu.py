"""Youtu: dense, with latent attention."""

from __future__ import annotations

from lanewise.loading.families.common import hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_attention, hf_latent_tensors
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    layer = Layer(hf_latent_attention(fields), hf_gated(fields, sources))
    return hf_model(fields, "youtu", [layer] * hf_n_layers(fields, sources), tied=True)


FAMILY = Family(
    "youtu",
    from_hf,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
