"""Gemma, the first one: a multiple of the embedding, gates of gelu, norms times 1 + w."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    check_values,
    hf_attention,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import add_one_to_norms, usual
from lanewise.loading.formats import TensorType, round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Gated, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

HEAD_DIM, CURVE = 256, "gelu_tanh"
MUST_BE = {"use_bidirectional_attention": (None, False), "attention_bias": (False,)}
# All mean the same: the first files said gelu, and were trained with its approximation.
CURVES = ("gelu", "gelu_pytorch_tanh", "gelu_new")


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    for key in ("hidden_act", "hidden_activation"):
        if fields.text(key, default=CURVES[0]) not in CURVES:
            raise fields.fail(key, " or ".join(map(repr, CURVES)))
    ffn = Gated(fields.integer("intermediate_size"), activation=CURVE)
    layer = Layer(hf_attention(fields, sources, HEAD_DIM), ffn)
    config = hf_model(fields, "gemma", [layer] * hf_n_layers(fields, sources), tied=True)
    return replace(config, embedding_scale=root_scale(config.hidden_size, sources))


def root_scale(hidden: int, sources: Sources) -> float:
    """Return the root of the size, in the type of the embedding, in which it is multiplied."""
    embedding = sources.get(usual(Role.TOKEN_EMBEDDING))
    root = math.sqrt(hidden)
    if embedding is None or embedding.type not in (TensorType.BF16, TensorType.F16):
        return round_to_f32(root)
    if embedding.type == TensorType.F16:
        return float(np.float16(root))
    (bits,) = struct.unpack("<I", struct.pack("<f", root))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


def cap(fields: Fields, key: str, default: float) -> float:
    """Return a cap; null is none, and a config that does not say has the family's."""
    if key in fields.values and fields.raw(key) is None:
        return 0.0
    return round_to_f32(fields.number(key, default=default))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Add the 1 that files leave out of norms."""
    tensors = Rearranged(sources)
    add_one_to_norms(tensors, config, (Role.ATTN_NORM, Role.FFN_NORM))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffn = Gated(fields.integer(f"{arch_of(fields)}.feed_forward_length"), activation=CURVE)
    layer = Layer(gguf_attention(fields, sources), ffn)
    config = gguf_model(fields, sources, "gemma", [layer] * gguf_n_layers(fields, sources))
    return replace(config, embedding_scale=round_to_f32(math.sqrt(config.hidden_size)))


FAMILY = Family("gemma", from_hf, "gemma", from_gguf, hf_tensors=hf_tensors, gguf_is_usual=False)
