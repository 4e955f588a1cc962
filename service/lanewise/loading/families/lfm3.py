"""LFM3: short convolutions, attention to windows or all with a gate for each head, more norms."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    KINDS as ATTENDING,
)
from lanewise.loading.families.common import (
    hf_attention,
    hf_gated,
    hf_n_layers,
    hf_ropes_of_kinds,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.lfm2 import named
from lanewise.loading.families.states import Mixer, check_no_bias, layer_of, own_kinds
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig, ShortConv
from lanewise.loading.sources import Sources

CONV = "conv"
HEAD_DIM, WINDOW, TAPS = 128, 256, 7  # of configs that do not say
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_theta"}
# What each name in a layer of a Hugging Face file is.
OF_LAYER = {
    "operator_norm": Role.ATTN_NORM,
    "post_operator_norm": Role.ATTN_RESULT_NORM,
    "self_attn.g_proj": Role.ATTN_GATE,
    "conv.in_proj": Role.STATE_IN,
    "conv.out_proj": Role.STATE_OUT,
    "ffn_norm": Role.FFN_NORM,
    "post_ffn_norm": Role.FFN_RESULT_NORM,
    "feed_forward.w1": Role.FFN_GATE,
    "feed_forward.w3": Role.FFN_UP,
    "feed_forward.w2": Role.FFN_DOWN,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    check_no_bias(fields, "conv_bias")
    default = [
        ATTENDING[n % 4 == 0]
        if n % 2 == 0 and n > 0
        else CONV  # conv, conv, full, conv, sliding, ...
        for n in range(n_layers)
    ]
    kinds = own_kinds(fields, "layer_types", (*ATTENDING, CONV), n_layers, default)
    attention = replace(
        hf_attention(fields, sources, HEAD_DIM, qk_norm="head"),
        head_gate=fields.flag("use_attention_gate", default=True),
    )
    window = fields.integer("sliding_window", default=WINDOW)
    mixers: dict[str, Mixer] = {
        "full_attention": attention,
        "sliding_attention": replace(attention, rope=1, window=window),
        CONV: ShortConv(fields.integer("conv_L_cache", default=TAPS)),
    }
    ffn, norms = hf_gated(fields, sources), fields.flag("use_sandwich_norm", default=True)
    made = {kind: replace(layer_of(mixers[kind], ffn), result_norms=norms) for kind in mixers}
    ropes, context = hf_ropes_of_kinds(fields, attention.head_dim, THETA_KEYS, THETAS)
    return ModelConfig(
        architecture="lfm3",
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=round_to_f32(fields.number("norm_eps", default=1e-5)),
        tied_embeddings=fields.flag("tie_word_embeddings", default=True),
        ropes=ropes,
        layers=tuple(made[kind] for kind in kinds),
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    return named(sources, config, OF_LAYER).out


FAMILY = Family("lfm3", from_hf, hf_tensors=hf_tensors, gguf_is_usual=False)
