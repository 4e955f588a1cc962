"""OLMoE: experts in all layers, and norms over the whole projections of Q and K."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families import olmo
from lanewise.loading.families.common import (
    check_activation,
    hf_attention,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    hf_count,
    stack_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import gguf_attention, gguf_model, gguf_n_layers
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    experts = Experts(
        n=hf_count(fields),
        n_used=fields.integer("num_experts_per_tok"),
        size=fields.integer("intermediate_size"),
        router="softmax",
        renormalize=fields.flag("norm_topk_prob", default=False),
    )
    attention = hf_attention(fields, sources, qk_norm="whole")
    layer = Layer(replace(attention, qkv_clip=olmo.hf_clip(fields)), experts)
    return hf_model(fields, "olmoe", [layer] * hf_n_layers(fields, sources))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=False)
    layer = Layer(gguf_attention(fields, sources, qk_norm="whole"), experts)
    return gguf_model(fields, sources, "olmoe", [layer] * gguf_n_layers(fields, sources))


FAMILY = Family(
    "olmoe",
    from_hf,
    "olmoe",
    from_gguf,
    hf_tensors=stack_experts,
    gguf_tensors=flatten_gguf_experts,
)
