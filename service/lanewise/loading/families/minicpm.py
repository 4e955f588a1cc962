"""MiniCPM, dense: Llama with three multipliers."""

from __future__ import annotations

import math
from dataclasses import replace

from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite import with_multipliers
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file; layers' results are divided by the root of the number of layers."""
    if not file.is_gguf and file.integer("num_experts", default=0, least=0):
        raise file.fail("num_experts", "0 (its experts are not supported)")
    n_layers = n_layers_of(file)
    layers = [Layer(attention_of(file), gated_of(file))] * n_layers
    config = model_of(file, "minicpm", layers, tied=True)
    if not file.is_gguf:
        return multiplied(file, config, 1.0)
    # The oldest GGUF files have no multipliers; their models have these.
    first = {
        "{arch}.embedding_scale": 12.0,
        "{arch}.residual_scale": 1.4 / math.sqrt(n_layers),
        "{arch}.logit_scale": config.hidden_size / 256,
    }
    unsaid = {key: value for key, value in first.items() if file.key_of(key) not in file.values}
    return with_multipliers(config, file.replacing(unsaid))


def multiplied(file: ModelFile, config: ModelConfig, embedding: float) -> ModelConfig:
    """Return a model with its config.json's multipliers; ``embedding`` if that has none."""
    depth = file.number("scale_depth", default=math.sqrt(config.n_layers))
    base = file.number("dim_model_base", default=config.hidden_size)
    return replace(
        config,
        embedding_scale=round_to_f32(file.number("scale_emb", default=embedding)),
        residual_scale=round_to_f32(depth / math.sqrt(config.n_layers)),
        logit_scale=round_to_f32(base / config.hidden_size),
    )


FAMILY = Family("minicpm", program, "minicpm", gguf_interleaved_rope=True)
