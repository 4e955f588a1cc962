"""Gemma 2: norms of what is added, windows in every second layer, caps of scores and logits."""

from __future__ import annotations

import math
from dataclasses import replace

from lanewise.loading.families import gemma3
from lanewise.loading.families.common import (
    KINDS,
    check_values,
    curve,
    hf_attention,
    hf_kinds,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import CURVE, HEAD_DIM, MUST_BE, cap, root_scale
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.sources import Sources

WINDOW, PERIOD, SCALAR = 4096, 2, 256  # of configs that do not say
LARGEST = 46  # layers of 27B, whose scores are scaled by another size than that of a head


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    n_layers = hf_n_layers(fields, sources)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % PERIOD == 0] for n in range(n_layers)]
    window = fields.integer("sliding_window", default=WINDOW)
    scale = fields.number("query_pre_attn_scalar", default=SCALAR) ** -0.5
    attention = replace(
        hf_attention(fields, sources, HEAD_DIM),
        score_scale=round_to_f32(scale),
        score_softcap=cap(fields, "attn_logit_softcapping", 50.0),
    )
    ffn = Gated(
        fields.integer("intermediate_size"),
        activation=curve(fields, "hidden_activation", CURVE),
    )
    layers = layers_of(attention, ffn, [None if kind == KINDS[0] else window for kind in kinds])
    config = hf_model(fields, "gemma2", layers, tied=True)
    return replace(
        config,
        embedding_scale=root_scale(config.hidden_size, sources),
        logit_softcap=cap(fields, "final_logit_softcapping", 30.0),
    )


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> list[Layer]:
    """Return a layer for each window."""
    made = {
        window: Layer(replace(attention, window=window), ffn, result_norms=True)
        for window in windows
    }
    return [made[window] for window in windows]


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    arch, n_layers = arch_of(fields), gguf_n_layers(fields, sources)
    attention = gguf_attention(fields, sources)
    if n_layers == LARGEST:
        share = fields.integer(f"{arch}.embedding_length") // attention.n_heads
        attention = replace(attention, score_scale=round_to_f32(share**-0.5))
    scores, logits = (
        round_to_f32(fields.number(f"{arch}.{name}_logit_softcapping", default=0.0, zero=True))
        for name in ("attn", "final")
    )
    ffn = Gated(fields.integer(f"{arch}.feed_forward_length"), activation=CURVE)
    windows = gguf_windows(fields, n_layers, PERIOD)
    layers = layers_of(replace(attention, score_softcap=scores), ffn, windows)
    config = gguf_model(fields, sources, "gemma2", layers)
    scale = round_to_f32(math.sqrt(config.hidden_size))
    return replace(config, embedding_scale=scale, logit_softcap=logits)


FAMILY = Family(
    "gemma2",
    from_hf,
    "gemma2",
    from_gguf,
    hf_tensors=gemma3.hf_tensors,
    gguf_is_usual=False,
)
