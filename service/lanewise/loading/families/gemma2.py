"""Gemma 2: norms of attention's and FFN's results, windows in every other layer, soft caps."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.families import gemma3
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    check_values,
    curve,
    model_of,
    n_layers_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import CURVE, MUST_BE, cap, root_scale
from lanewise.loading.families.gemma3 import scale_of
from lanewise.loading.programs.model_file import ModelFile

PERIOD = 2  # the first layer of each two has a window
LARGEST = 46  # layers of 27B, whose scores have another scale


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    attention = replace(
        attention_of(file),
        score_scale=scale_of(file, LARGEST),
        score_softcap=cap(file, "attn_logit_softcapping"),
    )
    ffn = Gated(
        file.integer("intermediate_size"), activation=curve(file, "hidden_activation", CURVE)
    )
    have = by_turns(n_layers_of(file), PERIOD)
    windows = windows_of(file, window_of(file, always=True), have)
    config = model_of(file, "gemma2", layers_of(attention, ffn, windows), tied=True)
    return replace(
        config,
        embedding_scale=root_scale(file),
        logit_softcap=cap(file, "final_logit_softcapping"),
    )


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window."""
    made = {
        window: Layer(replace(attention, window=window), ffn, result_norms=True)
        for window in windows
    }
    return [made[window] for window in windows]


FAMILY = Family("gemma2", program, "gemma2", hf_tensors=gemma3.hf_tensors, gguf_is_usual=False)
