"""SmolLM3: Llama, some layers of which have no positions."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
    hf_window,
    hf_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Layer, ModelConfig
from lanewise.loading.sources import Sources

THETA, INTERVAL = 2000000.0, 4  # every fourth layer has no positions


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    attention, ffn = hf_attention(fields, sources), hf_gated(fields, sources)
    have_rope = hf_have_rope(fields, n_layers)
    window = hf_window(fields, switched=True)
    windows = hf_windows(fields, window, [not has_rope for has_rope in have_rope])
    layers = [
        Layer(replace(with_rope(attention, has_rope), window=window), ffn)
        for has_rope, window in zip(have_rope, windows, strict=True)
    ]
    return hf_model(fields, "smollm3", layers, THETA, tied=True)


def hf_have_rope(fields: Fields, n_layers: int) -> list[bool]:
    """Return which layers have positions."""
    interval = fields.integer("no_rope_layer_interval", default=INTERVAL)
    listed = fields.raw("no_rope_layers")
    if listed is None:
        return [(number + 1) % interval != 0 for number in range(n_layers)]
    is_list = isinstance(listed, list) and len(listed) >= n_layers
    if not is_list or not all(has_rope in (0, 1) for has_rope in listed):
        raise fields.fail("no_rope_layers", f"{n_layers} times 1, for positions, or 0")
    return [has_rope == 1 for has_rope in listed[:n_layers]]


def with_rope(attention: Attention, has_rope: bool) -> Attention:
    """Return attention with or without positions."""
    return attention if has_rope else replace(attention, rope=None)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, which does not say which layers have positions."""
    attention, ffn = gguf_attention(fields, sources), gguf_gated(fields, sources)
    layers = [
        Layer(with_rope(attention, (number + 1) % INTERVAL != 0), ffn)
        for number in range(gguf_n_layers(fields, sources))
    ]
    return gguf_model(fields, sources, "smollm3", layers, THETA)


FAMILY = Family("smollm3", from_hf, "smollm3", from_gguf, gguf_interleaved_rope=True)
