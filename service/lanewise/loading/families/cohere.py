"""Command R, R+ and Aya: attention and FFN side by side behind one LayerNorm without a bias."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import has, hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, HF
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

THETA, LOGIT_SCALE = 500000.0, 0.0625  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, where some have the context of their weights under another name."""
    context = fields.integer("max_position_embeddings")
    context = max(context, fields.integer("model_max_length", default=context))
    fields = fields.replacing({"max_position_embeddings": context})
    qk_norm = "layer" if fields.flag("use_qk_norm", default=False) else "none"
    layer = beside(hf_attention(fields, sources, qk_norm=qk_norm), hf_gated(fields, sources))
    return hf_cohere(fields, "cohere", [layer] * hf_n_layers(fields, sources), THETA)


def beside(attention: Attention, ffn: Gated) -> Layer:
    """Return a layer whose attention and FFN read the same norm."""
    return Layer(attention, ffn, wiring="parallel_one_norm")


def hf_cohere(fields: Fields, name: str, layers: list[Layer], theta: float) -> ModelConfig:
    """Return the whole of a model."""
    eps = "layer_norm_eps"
    config = hf_model(fields, name, layers, theta, tied=True, own_kinds=True, eps=eps, norm="layer")
    scale = fields.number("logit_scale", default=LOGIT_SCALE)
    return replace(config, logit_scale=round_to_f32(scale))


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    qk_norm = "layer" if has(sources, Role.ATTN_Q_NORM, GGUF) else "none"
    layer = beside(gguf_attention(fields, sources, qk_norm=qk_norm), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_cohere(fields, sources, "cohere", layers)


def gguf_cohere(fields: Fields, sources: Sources, name: str, layers: list[Layer]) -> ModelConfig:
    """Return the whole of a model; logits are multiplied by their scale, and 0 means none."""
    scale = fields.number(f"{arch_of(fields)}.logit_scale", default=1.0, zero=True) or 1.0
    config = gguf_model(fields, sources, name, layers, norm="layer")
    return replace(config, logit_scale=round_to_f32(scale))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Make vectors of the norms of all heads."""
    return with_flat_norms(sources, config, HF)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Make vectors of the norms of all heads."""
    return with_flat_norms(sources, config, GGUF)


def with_flat_norms(sources: Sources, config: ModelConfig, column: int) -> Sources:
    """Make a vector of [heads, dimensions] in each layer whose heads have norms of their own."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers if config.heads.qk_norm == "layer" else 0):
        for role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM):
            tensors.ravel(usual(role, number, column), config.heads.head_dim)
    return tensors.out


FAMILY = Family(
    "cohere",
    from_hf,
    "command-r",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
