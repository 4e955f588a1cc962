"""Gemma 1: scaled embedding, GeGLU, norms that multiply by 1 + w."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import TensorType, round_to_f32
from lanewise.loading.base.program import Gated, Layer, ModelConfig
from lanewise.loading.families.common import attention_of, check_values, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import add_one_to_norms, usual
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

CURVE = "gelu_tanh"
MUST_BE = {"use_bidirectional_attention": (None, False), "attention_bias": (False,)}
# All mean the tanh approximation: the first files say gelu, but were trained with it.
CURVES = ("gelu", "gelu_pytorch_tanh", "gelu_new")


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    if not file.is_gguf:
        for key in ("hidden_act", "hidden_activation"):
            if file.text(key, default=CURVES[0]) not in CURVES:
                raise file.fail(key, " or ".join(map(repr, CURVES)))
    ffn = Gated(file.integer("intermediate_size"), activation=CURVE)
    layers = [Layer(attention_of(file), ffn)] * n_layers_of(file)
    return replace(model_of(file, "gemma", layers, tied=True), embedding_scale=root_scale(file))


def root_scale(file: ModelFile) -> float:
    """Return sqrt(hidden_size), rounded to the embedding's type, in which it is multiplied.

    In GGUF files, which may be quantized, it is a float32.
    """
    embedding = file.tensors.get(usual(Role.TOKEN_EMBEDDING))
    root = math.sqrt(file.integer("hidden_size"))
    if embedding is None or embedding.type not in (TensorType.BF16, TensorType.F16):
        return round_to_f32(root)
    if embedding.type == TensorType.F16:
        return float(np.float16(root))
    (bits,) = struct.unpack("<I", struct.pack("<f", root))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


def cap(file: ModelFile, key: str) -> float:
    """Return a cap; 0 means none."""
    return round_to_f32(file.number(key, default=0.0))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Add the 1 that files leave out of norms."""
    add_one_to_norms(tensors, config, (Role.ATTN_NORM, Role.FFN_NORM))


FAMILY = Family("gemma", program, "gemma", hf_tensors=hf_tensors, gguf_is_usual=False)
