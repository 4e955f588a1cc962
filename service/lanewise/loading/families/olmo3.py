"""OLMo 3: OLMo 2 with windows in most layers, whose RoPE is not scaled."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import olmo2
from lanewise.loading.families.common import (
    KINDS,
    attention_of,
    by_turns,
    gated_of,
    model_of,
    n_layers_of,
    ropes_of_kinds,
    window_of,
    windows_of,
)
from lanewise.loading.programs.model_file import ModelFile

THETA = 500000.0  # by default


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is olmo2."""
    if file.is_gguf:
        return olmo2.program(file)
    attention = attention_of(file, qk_norm="whole")
    have = by_turns(n_layers_of(file), olmo2.PERIOD)
    windows = windows_of(file, window_of(file, always=True), have)
    layers = olmo2.layers_by_windows(attention, gated_of(file), windows)
    keys, thetas = dict.fromkeys(KINDS, "rope_theta"), dict.fromkeys(KINDS, THETA)
    ropes = ropes_of_kinds(file, attention.head_dim, keys, thetas, scaled=1)
    return model_of(file, "olmo3", layers, ropes=ropes)


FAMILY = replace(olmo2.FAMILY, name="olmo3", program=program)
