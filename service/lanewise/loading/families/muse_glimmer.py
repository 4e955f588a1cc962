"""Muse Glimmer's language model: embeddings behind a norm, norms of results with a small epsilon.

Layers with a window turn queries and keys; every fourth layer, from the last one on, does neither.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Gated, Layer, ModelConfig
from lanewise.loading.families.common import (
    PERIOD,
    attention_of,
    curve,
    model_of,
    n_layers_of,
    rope_of,
    window_of,
    windows_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma3 import OF_LAYER
from lanewise.loading.families.naming import give_layer_roles, rename_attention_gates
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import rope_settings

NAME = "muse_glimmer_text"
MULTIPLIER, CAP = 0.19611613513818404, 20.0  # of logits, if a config does not say
RESULT_EPS = 1e-8  # which GGUF files do not say
NORMS = (Role.ATTN_NORM, *OF_LAYER.values())


def program(file: ModelFile) -> ModelConfig:
    """Read a file, or the text_config of a config.json."""
    n_layers = n_layers_of(file)
    have = [(number + 1 - n_layers) % PERIOD != 0 for number in range(n_layers)]
    windows = windows_of(file, window_of(file, always=True), have)
    attention = replace(attention_of(file, qk_norm="head"), output_gate=True)
    turning = turning_layers(file, [window is not None for window in windows])
    ffn = Gated(
        file.integer("intermediate_size"), activation=curve(file, "hidden_activation", "silu")
    )
    layers = [
        Layer(replace(attention, window=window, rope=0 if turns else None), ffn, result_norms=True)
        for window, turns in zip(windows, turning, strict=True)
    ]
    ropes, context = rope_of(file, attention.head_dim)
    if file.is_gguf:  # a theta of layers with a window is that of all that turn
        theta = file.number("{arch}.rope.freq_base_swa", default=ropes.theta)
        ropes = replace(ropes, theta=round_to_f32(theta))
    model = model_of(file, NAME, layers, own_kinds=True, ropes=((ropes,), context))
    file.ignore("qk_scale_factor")  # of norms (hf_values)
    return replace(
        model,
        embedding_norm=True,
        result_eps=round_to_f32(file.number("post_norm_eps", default=RESULT_EPS)),
        logit_scale=round_to_f32(file.number("output_multiplier", default=MULTIPLIER)),
        logit_softcap=round_to_f32(
            file.number("final_logit_softcapping", default=0.0 if file.is_gguf else CAP)
        ),
    )


def turning_layers(file: ModelFile, windowed: list[bool]) -> list[bool]:
    """Return which layers turn queries and keys: of a GGUF file, those with a window.

    All of them turn by the same angles: a theta in layer_rope_theta only tells that a layer does.
    """
    key, n_layers = "layer_rope_theta", len(windowed)
    if file.is_gguf:
        return windowed
    listed = file.raw(key)
    if listed is None:
        return [(number + 1 - n_layers) % PERIOD != 0 for number in range(n_layers)]
    theta = rope_settings(file).number("rope_theta", default=10000.0)
    if not isinstance(listed, list) or len(listed) != n_layers or set(listed) - {0, theta}:
        raise file.fail(key, f"{n_layers} times 0 or {theta}, the rope_theta of all layers,")
    return [value != 0 for value in listed]


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, add the 1 that files leave out of those of layers; those of heads have none."""
    give_layer_roles(tensors, config, OF_LAYER)
    for number in range(config.n_layers):
        for role in NORMS:
            tensors.add_one(tensors.usual(role, number))
        for role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM):
            tensors.add_ones(tensors.usual(role, number), config.heads.head_dim)


def hf_values(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Give the norms of queries the factor of queries."""
    scale = fields.number("qk_scale_factor")
    for number in range(config.n_layers):
        tensors.multiply_rows(tensors.usual(Role.ATTN_Q_NORM, number), scale)


FAMILY = Family(
    NAME,
    program,
    "muse-glimmer",
    hf_tensors=hf_tensors,
    hf_values=hf_values,
    gguf_tensors=rename_attention_gates,
    gguf_is_usual=False,
)
