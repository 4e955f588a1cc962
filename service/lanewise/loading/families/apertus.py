"""Apertus: a plain FFN of xIELU, whose two numbers are each layer's own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.families.common import hf_attention, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import one_number, usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Attention, Layer, ModelConfig, Plain
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

THETA = 12000000.0
BETA, EPS = 0.5, -1e-6  # which the library has
NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")
NORMS = {"attention_layernorm": Role.ATTN_NORM, "feedforward_layernorm": Role.FFN_NORM}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json, and the numbers of xIELU, which are tensors."""
    if fields.text("hidden_act", default="xielu") != "xielu":
        raise fields.fail("hidden_act", "'xielu'")
    attention = hf_attention(fields, sources, qk_norm="head")
    size = fields.integer("intermediate_size")
    numbers = [
        [one_number(sources, f"{_folder(number)}.{name}", fields.source) for name in NUMBERS]
        for number in range(hf_n_layers(fields, sources))
    ]
    return hf_model(fields, "apertus", layers_of(attention, size, numbers, fields), THETA)


def _folder(number: int) -> str:
    return f"model.layers.{number}.mlp.act_fn"


def layers_of(
    attention: Attention, size: int, numbers: Sequence[Sequence[float]], fields: Fields
) -> list[Layer]:
    """Return a layer for each four of NUMBERS; the first two go through softplus."""
    layers = []
    for alpha_p, alpha_n, beta, eps in numbers:
        if beta != BETA or abs(eps - EPS) > 1e-8:
            raise ModelFileError(
                f"{fields.source}: xIELU with beta {beta} and eps {eps}; {BETA} and {EPS} are"
                " needed"
            )
        alpha, limit = softplus(alpha_p), BETA + softplus(alpha_n)
        ffn = Plain(size, activation="xielu", limit=round_to_f32(limit), alpha=round_to_f32(alpha))
        layers.append(Layer(attention, ffn))
    return layers


def softplus(x: float) -> float:
    """Return ln(1 + e^x)."""
    return x if x > 20 else math.log1p(math.exp(x))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms their usual names, and leave out the numbers that were read."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        tensors.drop(*(f"{_folder(number)}.{name}" for name in NUMBERS))
        for name, role in NORMS.items():
            tensors.rename(f"model.layers.{number}.{name}.weight", usual(role, number))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, which has the numbers of xIELU."""
    attention = gguf_attention(fields, sources, qk_norm="head")
    size = fields.integer(f"{arch_of(fields)}.feed_forward_length")
    n_layers = gguf_n_layers(fields, sources)
    columns = []
    for name in NUMBERS:
        values = fields.raw(f"xielu.{name}")
        values = values if isinstance(values, list) else [values] * n_layers
        if len(values) != n_layers or not all(isinstance(value, float) for value in values):
            raise fields.fail(f"xielu.{name}", f"{n_layers} numbers")
        columns.append(values)
    layers = layers_of(attention, size, list(zip(*columns, strict=True)), fields)
    return gguf_model(fields, sources, "apertus", layers, THETA)


FAMILY = Family(
    "apertus", from_hf, "apertus", from_gguf, hf_tensors=hf_tensors, gguf_is_usual=False
)
