"""Mistral: Llama whose layers see the last tokens only, in its first version."""

from __future__ import annotations

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_window,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

DEFAULT_WINDOW = 4096  # of configs that do not say; newer models say null


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    window: int | None = DEFAULT_WINDOW
    if "sliding_window" in fields.values:
        window = hf_window(fields)
    layer = Layer(hf_attention(fields, sources), hf_gated(fields, sources))
    layers = with_windows(layer, [window] * hf_n_layers(fields, sources))
    return hf_model(fields, "mistral", layers)


FAMILY = Family("mistral", from_hf, gguf_interleaved_rope=True)
