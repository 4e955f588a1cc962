"""Mistral 4: latent attention whose queries are scaled by their position, experts by softmax."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families import deepseek_v2
from lanewise.loading.families.common import hf_model
from lanewise.loading.families.experts import hf_dense_first, hf_routed_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import (
    hf_latent_attention,
    hf_latent_tensors,
)
from lanewise.loading.families.ministral3 import BETA, scaled
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig
from lanewise.loading.rope import rope_settings
from lanewise.loading.sources import Sources

PARTIAL = "partial_rotary_factor"  # of whole heads; the rest of the config says what turns


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    settings = rope_settings(fields)
    beta = settings.number(BETA, default=0.0, zero=True)
    original = settings.integer("original_max_position_embeddings", default=1)
    attention = scaled(hf_latent_attention(fields), beta, original)
    experts = hf_routed_experts(fields, "softmax", renormalize=True)
    first = fields.integer("first_k_dense_replace", default=0, least=0)
    layers = hf_dense_first(fields, sources, attention, experts, first)
    turning = {key: value for key, value in settings.values.items() if key != PARTIAL}
    fields = fields.replacing({"rope_parameters": turning, "rope_scaling": None})
    return hf_model(fields, "mistral4", layers, own=(BETA,))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, which is that of DeepSeek's files."""
    return replace(deepseek_v2.from_gguf(fields, sources), architecture="mistral4")


FAMILY = Family(
    "mistral4",
    from_hf,
    "mistral4",
    from_gguf,
    hf_tensors=hf_latent_tensors,
    gguf_tensors=deepseek_v2.gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
