"""Gemma 3 that sees both ways (EmbeddingGemma): norms of what is added, and neighbours by turns."""

from __future__ import annotations

import math
import struct
from dataclasses import replace

import numpy as np

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    KINDS,
    hf_attention,
    hf_kinds,
    hf_n_layers,
    hf_ropes_of_kinds,
)
from lanewise.loading.families.encoders import (
    check_values,
    curve,
    encoder_family,
    layers_by_turns,
    norm_eps,
    usual,
)
from lanewise.loading.families.encoders_gguf import gguf_pooling
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.formats import TensorType, round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Dense, Gated, ModelConfig, Pooling, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

HEAD_DIM, WINDOW, PERIOD = 256, 512, 6  # of configs that do not say
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
MUST_BE = {
    "use_bidirectional_attention": (True,),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "attention_bias": (False,),
}
OWN_HARMLESS = ("cache_implementation", "_sliding_window_pattern", "sliding_window_pattern")
# In the order in which names become free.
OF_LAYER = {
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "pre_feedforward_layernorm": Role.FFN_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
}
NORMS = (Role.ATTN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM, *OF_LAYER.values())
# Numbers of the dense heads in GGUF files, which begin behind the modules that need no weights.
DENSE = (2, 3)


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    fields.raw("use_bidirectional_attention")
    if not fields.flag("use_bidirectional_attention", default=False):
        raise fields.fail("use_bidirectional_attention", "true, as of models that make vectors,")
    check_values(fields, MUST_BE)
    n_layers = hf_n_layers(fields, sources)
    period = fields.integer("_sliding_window_pattern", default=PERIOD)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % period < period - 1] for n in range(n_layers)]
    scale = fields.number("query_pre_attn_scalar", default=HEAD_DIM) ** -0.5
    attention = replace(
        hf_attention(fields, sources, HEAD_DIM, qk_norm="head"),
        score_scale=round_to_f32(scale),
        both_ways=True,
    )
    ropes, context = hf_ropes_of_kinds(fields, attention.head_dim, THETA_KEYS, THETAS, scaled=1)
    hidden = fields.integer("hidden_size")
    window = fields.integer("sliding_window", default=WINDOW)
    windows = [None if kind == KINDS[0] else window for kind in kinds]
    ffn = Gated(
        fields.integer("intermediate_size"),
        activation=curve(fields, "hidden_activation", "gelu_tanh"),
    )
    return ModelConfig(
        architecture="gemma3_text",
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=norm_eps(fields, "rms_norm_eps", 1e-6),
        tied_embeddings=True,
        ropes=ropes,
        layers=layers_by_turns(attention, ffn, windows, result_norms=True),
        embedding_scale=_embedding_scale(hidden, sources),
        pooling=Pooling(),
    )


def _embedding_scale(hidden: int, sources: Sources) -> float:
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


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms their usual names, and add the 1 that files leave out of them."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        for name, role in OF_LAYER.items():
            tensors.rename(f"model.layers.{number}.{name}.weight", usual(role, number))
        for role in NORMS:
            tensors.add_one(usual(role, number))
    tensors.add_one(usual(Role.OUTPUT_NORM))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    key = "gemma-embedding"
    fields.ignore(f"{key}.attention.causal")
    attention = replace(gguf_attention(fields, sources, qk_norm="head"), both_ways=True)
    ffn = Gated(fields.integer(f"{key}.feed_forward_length"), activation="gelu_tanh")
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), PERIOD)
    layers = layers_by_turns(attention, ffn, windows, result_norms=True)
    model = gguf_model(fields, sources, "gemma3_text", layers, THETAS[KINDS[0]])
    theta = fields.number(f"{key}.rope.freq_base_swa", default=THETAS[KINDS[1]])
    pooling = replace(gguf_pooling(fields, sources), dense=_dense(fields, sources))
    return replace(
        model,
        tied_embeddings=True,
        ropes=(*model.ropes, Rope(round_to_f32(theta), model.ropes[0].rotated)),
        embedding_scale=round_to_f32(math.sqrt(model.hidden_size)),
        pooling=pooling,
    )


def _dense(fields: Fields, sources: Sources) -> tuple[Dense, ...]:
    heads = []
    for number in DENSE:
        head = sources.get(f"dense_{number}.weight")
        fields.ignore(*(f"gemma-embedding.dense_{number}_feat_{end}" for end in ("in", "out")))
        if head is not None and len(head.shape) == 2:
            heads.append(Dense(head.shape[0]))
    return tuple(heads)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give the dense heads their usual names; a head that makes logits has no use."""
    tensors = Rearranged(sources)
    for place, number in enumerate(DENSE):
        tensors.rename(f"dense_{number}.weight", usual(Role.DENSE, place, GGUF))
    tensors.drop(usual(Role.OUTPUT, column=GGUF))
    return tensors.out


FAMILY = replace(
    encoder_family("gemma3_text", from_hf, hf_tensors, OWN_HARMLESS),
    gguf="gemma-embedding",
    from_gguf=from_gguf,
    gguf_tensors=gguf_tensors,
)
