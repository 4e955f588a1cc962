"""GLM 4.5 and 4.6: sigmoid experts with a bias, dense first layers, RoPE over half of each head."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.cohere import has_qk_norm
from lanewise.loading.families.common import attention_of, model_of
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    mixture_of,
    routed_experts_of,
    sparse_from,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import gguf_post_attention_norm
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.5  # share of each head that RoPE turns by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    experts = routed_experts_of(file, "sigmoid", renormalize=True)
    qk_norm = "head" if has_qk_norm(file, "use_qk_norm") else "none"
    first = file.integer("first_k_dense_replace", default=1, least=0)
    attention = attention_of(file, qk_norm=qk_norm)
    layers = mixture_of(file, attention, experts, sparse_from(file, first))
    return model_of(file, "glm4_moe", layers, partial=PARTIAL)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    stack_routed_experts(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop the multi-token prediction layers, and rename the second norm."""
    tensors.drop_layers_from(config.n_layers)
    gguf_post_attention_norm(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "glm4_moe",
    program,
    "glm4moe",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
