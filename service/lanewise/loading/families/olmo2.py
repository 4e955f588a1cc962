"""OLMo 2: norms of what is added in the place of those before, and over whole queries and keys."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PERIOD = 4  # of OLMo 3: its last layer of each sees all
# In the order in which names become free.
OF_LAYER = {
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    attention = hf_attention(fields, sources, qk_norm="whole")
    layer = behind(attention, hf_gated(fields, sources))
    return hf_model(fields, "olmo2", [layer] * hf_n_layers(fields, sources))


def behind(attention: Attention, ffn: Gated) -> Layer:
    """Return a layer whose norms are behind attention and FFN."""
    return Layer(attention, ffn, result_norms=True, no_input_norms=True)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms their usual names."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        for name, role in OF_LAYER.items():
            tensors.rename(f"model.layers.{number}.{name}.weight", usual(role, number))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, also that of OLMo 3: what has a window is turned by angles without scaling."""
    attention = gguf_attention(fields, sources, qk_norm="whole")
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), PERIOD)
    layers = layers_by_windows(attention, gguf_gated(fields, sources), windows)
    model = gguf_model(fields, sources, "olmo2", layers)
    rope = model.ropes[0]
    theta = fields.number("olmo2.rope.freq_base_swa", default=rope.theta)
    if not any(windows):
        return model
    return replace(model, ropes=(rope, Rope(round_to_f32(theta), rope.rotated)))


def layers_by_windows(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window, which those that have one turn by the second angles."""
    made = {window: behind(windowed(attention, window), ffn) for window in windows}
    return [made[window] for window in windows]


def windowed(attention: Attention, window: int | None) -> Attention:
    """Return attention as it is, or with a window and the second angles."""
    return attention if window is None else replace(attention, rope=1, window=window)


FAMILY = Family("olmo2", from_hf, "olmo2", from_gguf, hf_tensors=hf_tensors, gguf_is_usual=False)
