"""Gemma 3, also as it makes vectors (EmbeddingGemma): norms of what is added, windows by turns."""

from __future__ import annotations

import math
from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    KINDS,
    check_values,
    curve,
    hf_attention,
    hf_kinds,
    hf_n_layers,
    hf_ropes_of_kinds,
)
from lanewise.loading.families.encoders import norm_eps
from lanewise.loading.families.encoders_gguf import gguf_pooling
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import cap, root_scale
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.families.naming import add_one_to_norms, usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import (
    Attention,
    Dense,
    Gated,
    Layer,
    ModelConfig,
    Pooling,
    Rope,
)
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

# Of configs that do not say, as those of 4B to 27B do not.
WINDOW, PERIOD, SCALAR = 4096, 6, 256
EMBEDDING_WINDOW = 512
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
MUST_BE = {
    "attn_logit_softcapping": (None,),
    "attention_bias": (False,),
}
PERIODS = ("sliding_window_pattern", "_sliding_window_pattern")
# In the order in which names become free.
OF_LAYER = {
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "pre_feedforward_layernorm": Role.FFN_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
}
NORMS = (Role.ATTN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM, *OF_LAYER.values())
# Of files of 27B, whose scores are scaled by another size than that of a head.
LARGEST = 62
# Numbers of the dense heads in GGUF files, which begin behind the modules that need no weights.
DENSE = (2, 3)


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    both_ways = fields.flag("use_bidirectional_attention", default=False)
    n_layers = hf_n_layers(fields, sources)
    period = next((fields.integer(key) for key in PERIODS if fields.is_set(key)), PERIOD)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % period < period - 1] for n in range(n_layers)]
    scale = fields.number("query_pre_attn_scalar", default=SCALAR) ** -0.5
    attention = replace(
        hf_attention(fields, sources, qk_norm="head"),
        score_scale=round_to_f32(scale),
        both_ways=both_ways,
    )
    ropes, context = hf_ropes_of_kinds(fields, attention.head_dim, THETA_KEYS, THETAS, scaled=1)
    hidden = fields.integer("hidden_size")
    window = fields.integer("sliding_window", default=EMBEDDING_WINDOW if both_ways else WINDOW)
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
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        ropes=ropes,
        layers=layers_of(attention, ffn, windows),
        embedding_scale=root_scale(hidden, sources),
        pooling=Pooling() if both_ways else None,
        logit_softcap=cap(fields, "final_logit_softcapping", 0.0),
    )


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> tuple[Layer, ...]:
    """Return layers that see all, or a window by the model's second angles.

    Those that see both ways have half of it on each side.
    """
    made: dict[int | None, Layer] = {}
    for window in set(windows):
        seen = window
        if window is not None and attention.both_ways:
            seen = window // 2 + 1
        own = attention if seen is None else replace(attention, rope=1, window=seen)
        made[window] = Layer(own, ffn, result_norms=True)
    return tuple(made[window] for window in windows)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give norms their usual names, and add the 1 that files leave out of them."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        for name, role in OF_LAYER.items():
            tensors.rename(f"model.layers.{number}.{name}.weight", usual(role, number))
    add_one_to_norms(tensors, config, NORMS)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    attention = gguf_attention(fields, sources, qk_norm="head")
    n_layers = gguf_n_layers(fields, sources)
    if n_layers == LARGEST:
        share = fields.integer(f"{arch_of(fields)}.embedding_length") // attention.n_heads
        attention = replace(attention, score_scale=round_to_f32(share**-0.5))
    return gguf_gemma(fields, sources, attention)


def gguf_gemma(fields: Fields, sources: Sources, attention: Attention) -> ModelConfig:
    """Return the whole of a model, which does not make vectors yet."""
    arch = arch_of(fields)
    ffn = Gated(fields.integer(f"{arch}.feed_forward_length"), activation="gelu_tanh")
    windows = gguf_windows(fields, gguf_n_layers(fields, sources), PERIOD)
    layers = layers_of(attention, ffn, windows)
    model = gguf_model(fields, sources, "gemma3_text", layers, THETAS[KINDS[0]])
    theta = fields.number(f"{arch}.rope.freq_base_swa", default=THETAS[KINDS[1]])
    key = f"{arch}.final_logit_softcapping"
    return replace(
        model,
        ropes=(*model.ropes, Rope(round_to_f32(theta), model.ropes[0].rotated)),
        embedding_scale=round_to_f32(math.sqrt(model.hidden_size)),
        logit_softcap=round_to_f32(fields.number(key, default=0.0, zero=True)),
    )


def embedding_from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata of what makes vectors."""
    fields.ignore(f"{arch_of(fields)}.attention.causal")
    attention = replace(gguf_attention(fields, sources, qk_norm="head"), both_ways=True)
    model = replace(gguf_gemma(fields, sources, attention), tied_embeddings=True)
    pooling = replace(gguf_pooling(fields, sources), dense=_dense(fields, sources))
    return replace(model, pooling=pooling)


def _dense(fields: Fields, sources: Sources) -> tuple[Dense, ...]:
    heads = []
    for number in DENSE:
        head = sources.get(f"dense_{number}.weight")
        fields.ignore(*(f"{arch_of(fields)}.dense_{number}_feat_{end}" for end in ("in", "out")))
        if head is not None and len(head.shape) == 2:
            heads.append(Dense(head.shape[0]))
    return tuple(heads)


def embedding_gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give the dense heads their usual names; a head that makes logits has no use."""
    tensors = Rearranged(sources)
    for place, number in enumerate(DENSE):
        tensors.rename(f"dense_{number}.weight", usual(Role.DENSE, place, GGUF))
    tensors.drop(usual(Role.OUTPUT, column=GGUF))
    return tensors.out


FAMILY = Family(
    "gemma3_text",
    from_hf,
    "gemma3",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
    harmless=("sliding_window_pattern",),
)
EMBEDDING = replace(
    FAMILY,
    gguf="gemma-embedding",
    from_gguf=embedding_from_gguf,
    gguf_tensors=embedding_gguf_tensors,
)
