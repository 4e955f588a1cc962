"""GLM 4.5 and 4.6: experts chosen by sigmoid and a bias, dense layers first, half-turned heads."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import has, hf_attention, hf_model
from lanewise.loading.families.experts import (
    EPS,
    flatten_gguf_experts,
    gguf_experts,
    gguf_sparse_layers,
    hf_dense_first,
    hf_routed_experts,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_post_attention_norm,
    gguf_trunk_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL = 0.5  # of each head is turned, where the config does not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    experts = hf_routed_experts(fields, "sigmoid", renormalize=True)
    qk_norm = "head" if fields.flag("use_qk_norm", default=False) else "none"
    attention = hf_attention(fields, sources, qk_norm=qk_norm)
    first = fields.integer("first_k_dense_replace", default=1, least=0)
    layers = hf_dense_first(fields, sources, attention, experts, first)
    return hf_model(fields, "glm4_moe", layers, partial=PARTIAL)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts; leave out the layers that guess further tokens."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("model.layers.", config.n_layers)
    stack_routed_experts(tensors, config)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; the last layers guess further tokens and are not counted."""
    experts = gguf_experts(fields, sources, "sigmoid", renormalize=True, denominator_eps=EPS)
    n_layers = gguf_trunk_layers(fields, sources)
    qk_norm = "head" if has(sources, Role.ATTN_Q_NORM, GGUF) else "none"
    attention = gguf_attention(fields, sources, qk_norm=qk_norm)
    layers = gguf_sparse_layers(fields, sources, attention, experts, n_layers)
    return gguf_model(fields, sources, "glm4_moe", layers)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Leave out the layers that guess further tokens, and name the second norm."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("blk.", config.n_layers)
    gguf_post_attention_norm(tensors, config)
    return flatten_gguf_experts(tensors.out, config)


FAMILY = Family(
    "glm4_moe",
    from_hf,
    "glm4moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
