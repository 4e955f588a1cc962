"""OLMo 2: norms after attention and FFN, not before them, and over whole queries and keys."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    gated_of,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PERIOD = 4  # OLMo 3: every 4th layer has no window
# Names to roles, in an order in which each new name is free.
OF_LAYER = {
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file; OLMo 3, which has windows, is olmo2 in GGUF files.

    Layers with a window have angles without scaling.
    """
    attention, ffn = attention_of(file, qk_norm="whole"), gated_of(file)
    if not file.is_gguf:
        return model_of(file, "olmo2", [behind(attention, ffn)] * n_layers_of(file))
    windows = windows_of(file, window_of(file), by_turns(n_layers_of(file), PERIOD))
    model = model_of(file, "olmo2", layers_by_windows(attention, ffn, windows))
    rope = model.ropes[0]
    theta = file.number("{arch}.rope.freq_base_swa", default=rope.theta)
    if not any(windows):
        return model
    return replace(model, ropes=(rope, Rope(round_to_f32(theta), rope.rotated)))


def behind(attention: Attention, ffn: Gated) -> Layer:
    """Return a layer with norms after attention and FFN."""
    return Layer(attention, ffn, result_norms=True, no_input_norms=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Give norms their usual names."""
    give_layer_roles(tensors, config, OF_LAYER)


def layers_by_windows(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window; layers with a window have the second angles."""
    made = {window: behind(windowed(attention, window), ffn) for window in windows}
    return [made[window] for window in windows]


def windowed(attention: Attention, window: int | None) -> Attention:
    """Return attention unchanged, or with a window and the second angles."""
    return attention if window is None else replace(attention, rope=1, window=window)


FAMILY = Family("olmo2", program, "olmo2", hf_tensors=hf_tensors, gguf_is_usual=False)
