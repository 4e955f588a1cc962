"""Mistral 4: latent attention with queries scaled by position, softmax experts."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import deepseek_v2
from lanewise.loading.families.common import model_of
from lanewise.loading.families.experts import mixture_of, routed_experts_of, sparse_from
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors, latent_attention_of
from lanewise.loading.families.ministral3 import BETA, scaled
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import rope_settings

PARTIAL = "partial_rotary_factor"  # of whole heads; other fields say which dimensions turn


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files are like DeepSeek's."""
    if file.is_gguf:
        return replace(deepseek_v2.gguf_program(file), architecture="mistral4")
    settings = rope_settings(file)
    beta = settings.number(BETA, default=0.0, zero=True)
    original = settings.integer("original_max_position_embeddings", default=1)
    attention = scaled(latent_attention_of(file), beta, original)
    experts = routed_experts_of(file, "softmax", renormalize=True)
    first = file.integer("first_k_dense_replace", default=0, least=0)
    layers = mixture_of(file, attention, experts, sparse_from(file, first))
    turning = {key: value for key, value in settings.values.items() if key != PARTIAL}
    file = file.replacing({"rope_parameters": turning, "rope_scaling": None})
    return model_of(file, "mistral4", layers, own=(BETA,))


FAMILY = Family(
    "mistral4",
    program,
    "mistral4",
    hf_tensors=hf_latent_tensors,
    gguf_tensors=deepseek_v2.gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
