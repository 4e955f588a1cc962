"""OLMoE: experts in all layers, and norms over the whole projections of Q and K."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families import olmo
from lanewise.loading.families.common import attention_of, check_activation, model_of, n_layers_of
from lanewise.loading.families.experts import (
    count_name,
    experts_of,
    flatten_gguf_experts,
    stack_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    renormalize = file.flag("norm_topk_prob", default=False)
    count = count_name(file)
    experts = experts_of(file, "softmax", renormalize, n=count, size="intermediate_size")
    attention = attention_of(file, qk_norm="whole")
    if not file.is_gguf:
        attention = replace(attention, qkv_clip=olmo.clip_of(file))
    return model_of(file, "olmoe", [Layer(attention, experts)] * n_layers_of(file))


FAMILY = Family(
    "olmoe", program, "olmoe", hf_tensors=stack_experts, gguf_tensors=flatten_gguf_experts
)
