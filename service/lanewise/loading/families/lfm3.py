"""LFM3: short convolutions, attention with or without a window with a gate per head, more norms."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import ShortConv
from lanewise.loading.families.common import KINDS as ATTENDING
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    n_layers_of,
    ropes_of_kinds,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.lfm2 import named
from lanewise.loading.families.states import Mixer, check_no_bias, layer_of, own_kinds
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

CONV = "conv"
WINDOW, TAPS = 256, 7  # by default
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_theta"}
# Names in a layer of a directory to roles.
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


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    n_layers = n_layers_of(file)
    check_no_bias(file, "conv_bias")
    default = [
        ATTENDING[n % 4 == 0]
        if n % 2 == 0 and n > 0
        else CONV  # conv, conv, full, conv, sliding, ...
        for n in range(n_layers)
    ]
    kinds = own_kinds(file, "layer_types", (*ATTENDING, CONV), n_layers, default)
    attention = replace(
        attention_of(file, qk_norm="head"),
        head_gate=file.flag("use_attention_gate", default=True),
    )
    window = file.integer("sliding_window", default=WINDOW)
    mixers: dict[str, Mixer] = {
        "full_attention": attention,
        "sliding_attention": replace(attention, rope=1, window=window),
        CONV: ShortConv(file.integer("conv_L_cache", default=TAPS)),
    }
    ffn, norms = gated_of(file), file.flag("use_sandwich_norm", default=True)
    made = {kind: replace(layer_of(mixers[kind], ffn), result_norms=norms) for kind in mixers}
    ropes = ropes_of_kinds(file, attention.head_dim, THETA_KEYS, THETAS)
    layers = [made[kind] for kind in kinds]
    return model_of(file, "lfm3", layers, tied=True, own_kinds=True, eps="norm_eps", ropes=ropes)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    named(tensors, config, OF_LAYER)


FAMILY = Family("lfm3", program, hf_tensors=hf_tensors, gguf_is_usual=False)
