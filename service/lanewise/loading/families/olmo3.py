"""OLMo 3: OLMo 2 with windows in most layers, whose positions are not scaled."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families import olmo2
from lanewise.loading.families.common import (
    KINDS,
    hf_attention,
    hf_gated,
    hf_kinds,
    hf_model,
    hf_n_layers,
    hf_ropes_of_kinds,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig
from lanewise.loading.sources import Sources

WINDOW, THETA = 4096, 500000.0  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json; GGUF files of it say that they are OLMo 2."""
    n_layers = hf_n_layers(fields, sources)
    last = olmo2.PERIOD - 1
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % olmo2.PERIOD < last] for n in range(n_layers)]
    window = fields.integer("sliding_window", default=WINDOW)
    attention = hf_attention(fields, sources, qk_norm="whole")
    windows = [None if kind == KINDS[0] else window for kind in kinds]
    layers = olmo2.layers_by_windows(attention, hf_gated(fields, sources), windows)
    keys, thetas = dict.fromkeys(KINDS, "rope_theta"), dict.fromkeys(KINDS, THETA)
    ropes, context = hf_ropes_of_kinds(fields, attention.head_dim, keys, thetas, scaled=1)
    plain = fields.replacing({"rope_parameters": None, "rope_scaling": None})
    model = hf_model(plain, "olmo3", layers, THETA)
    return replace(model, ropes=ropes, context_length=context)


FAMILY = replace(olmo2.FAMILY, name="olmo3", from_hf=from_hf)
