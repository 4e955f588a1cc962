"""MiniCPM, dense: Llama with three multipliers."""

from __future__ import annotations

import math
from dataclasses import replace

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.granite import gguf_with_multipliers
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json; what each layer adds is divided by the root of their number."""
    if fields.integer("num_experts", default=0, least=0):
        raise fields.fail("num_experts", "0 (its experts are not supported)")
    n_layers = hf_n_layers(fields, sources)
    layer = Layer(hf_attention(fields, sources), hf_gated(fields, sources))
    config = hf_model(fields, "minicpm", [layer] * n_layers, tied=True)
    return hf_multiplied(fields, config, 1.0)


def hf_multiplied(fields: Fields, config: ModelConfig, embedding: float) -> ModelConfig:
    """Return a model with the multipliers of its config; ``embedding`` if that has none."""
    return multiplied(
        config,
        fields.number("scale_emb", default=embedding),
        fields.number("scale_depth", default=math.sqrt(config.n_layers)),
        fields.number("dim_model_base", default=config.hidden_size),
    )


def multiplied(config: ModelConfig, embedding: float, depth: float, base: float) -> ModelConfig:
    """Return a model whose embeddings, layers' results and logits are multiplied."""
    return replace(
        config,
        embedding_scale=round_to_f32(embedding),
        residual_scale=round_to_f32(depth / math.sqrt(config.n_layers)),
        logit_scale=round_to_f32(base / config.hidden_size),
    )


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; the first files have no multipliers, which are those of the first models."""
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    first = {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / math.sqrt(len(layers)),
        "logit_scale": fields.integer("minicpm.embedding_length") / 256,
    }
    given = {f"minicpm.{key}": value for key, value in first.items()} | dict(fields.values)
    fields = fields.replacing(given)
    return gguf_with_multipliers(gguf_model(fields, sources, "minicpm", layers), fields)


FAMILY = Family("minicpm", from_hf, "minicpm", from_gguf, gguf_interleaved_rope=True)
