"""Apertus: a plain FFN with xIELU, whose two parameters differ by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Layer, ModelConfig, Plain
from lanewise.loading.families.common import attention_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles, one_number
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETA = 12000000.0
BETA, EPS = 0.5, -1e-6  # as fixed in the library
NUMBERS = ("alpha_p", "alpha_n", "beta", "eps")
NORMS = {"attention_layernorm": Role.ATTN_NORM, "feedforward_layernorm": Role.FFN_NORM}


def program(file: ModelFile) -> ModelConfig:
    """Read a file, with the parameters of xIELU."""
    if file.text("hidden_act", default="xielu") != "xielu":
        raise file.fail("hidden_act", "'xielu'")
    attention, size = attention_of(file, qk_norm="head"), file.integer("intermediate_size")
    numbers = gguf_numbers(file) if file.is_gguf else hf_numbers(file)
    return model_of(file, "apertus", layers_of(attention, size, numbers, file.source), THETA)


def hf_numbers(file: ModelFile) -> list[list[float]]:
    """Return NUMBERS of each layer, which directories store as tensors."""
    return [
        [one_number(file.tensors, f"{_folder(number)}.{name}", file.source) for name in NUMBERS]
        for number in range(n_layers_of(file))
    ]


def gguf_numbers(file: ModelFile) -> list[tuple[float, ...]]:
    """Return NUMBERS of each layer, which GGUF files store as keys."""
    n_layers, columns = n_layers_of(file), []
    for name in NUMBERS:
        values = file.raw(f"xielu.{name}")
        values = values if isinstance(values, list) else [values] * n_layers
        if len(values) != n_layers or not all(isinstance(value, float) for value in values):
            raise file.fail(f"xielu.{name}", f"{n_layers} numbers")
        columns.append(values)
    return list(zip(*columns, strict=True))


def _folder(number: int) -> str:
    return f"model.layers.{number}.mlp.act_fn"


def layers_of(
    attention: Attention, size: int, numbers: Sequence[Sequence[float]], source: str
) -> list[Layer]:
    """Return a layer for each row of NUMBERS; the first two numbers go through softplus."""
    layers = []
    for alpha_p, alpha_n, beta, eps in numbers:
        if beta != BETA or abs(eps - EPS) > 1e-8:
            raise ModelFileError(
                f"{source}: xIELU with beta {beta} and eps {eps}; {BETA} and {EPS} are needed"
            )
        alpha, limit = softplus(alpha_p), BETA + softplus(alpha_n)
        ffn = Plain(size, activation="xielu", limit=round_to_f32(limit), alpha=round_to_f32(alpha))
        layers.append(Layer(attention, ffn))
    return layers


def softplus(x: float) -> float:
    """Return ln(1 + e^x)."""
    return x if x > 20 else math.log1p(math.exp(x))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, and drop the tensors of NUMBERS, which have been read."""
    give_layer_roles(tensors, config, NORMS)
    for number in range(config.n_layers):
        tensors.drop(*(f"{_folder(number)}.{name}" for name in NUMBERS))


FAMILY = Family("apertus", program, "apertus", hf_tensors=hf_tensors, gguf_is_usual=False)
