"""LFM2: short convolutions in the place of most layers' attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_attention, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.families.states import (
    Mixer,
    check_no_bias,
    gguf_heads,
    give,
    give_conv,
    layers_of,
    own_kinds,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Experts, Gated, Layer, ModelConfig, ShortConv
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

KINDS = ("conv", "full_attention")
THETA = 1e6  # of configs that do not say
# What each name in a layer of a Hugging Face file is.
OF_LAYER = {
    "operator_norm": Role.ATTN_NORM,
    "self_attn.q_layernorm": Role.ATTN_Q_NORM,
    "self_attn.k_layernorm": Role.ATTN_K_NORM,
    "self_attn.out_proj": Role.ATTN_OUTPUT,
    "conv.in_proj": Role.STATE_IN,
    "conv.out_proj": Role.STATE_OUT,
    "ffn_norm": Role.FFN_NORM,
    "feed_forward.w1": Role.FFN_GATE,
    "feed_forward.w3": Role.FFN_UP,
    "feed_forward.w2": Role.FFN_DOWN,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    mixers, kinds = hf_mixers(fields, sources), hf_kinds(fields, n_layers)
    for key in ("block_use_swiglu", "use_pos_enc"):
        if not fields.flag(key, default=True):
            raise fields.fail(key, "true")
    layers = layers_of(mixers, kinds, [hf_lfm_gated(fields)] * n_layers)
    return hf_lfm_model(fields, "lfm2", layers)


def hf_mixers(fields: Fields, sources: Sources) -> dict[str, Mixer]:
    """Return what stands in layers of both kinds."""
    check_no_bias(fields, "conv_bias")
    convolution = ShortConv(fields.integer("conv_L_cache", default=3))
    return {"conv": convolution, "full_attention": hf_attention(fields, sources, qk_norm="head")}


def hf_kinds(fields: Fields, n_layers: int) -> list[str]:
    """Return each layer's kind: by layer_types, or the list of those with attention."""
    numbers = fields.raw("full_attn_idxs")
    if numbers is None:
        numbers = list(range(n_layers))
    if not isinstance(numbers, list) or not all(
        type(number) is int and 0 <= number < n_layers for number in numbers
    ):
        raise fields.fail("full_attn_idxs", f"a list of layers from 0 to {n_layers - 1}")
    with_attention = set(numbers)
    default = [KINDS[number in with_attention] for number in range(n_layers)]
    return own_kinds(fields, "layer_types", KINDS, n_layers, default)


def hf_lfm_gated(fields: Fields) -> Gated:
    """Return a gated layer, whose size is rounded up from a share of the config's."""
    size = fields.integer("intermediate_size", default=12288)
    size = fields.integer("block_ff_dim", default=size)
    multiplier = fields.number("block_ffn_dim_multiplier", default=1.0)
    multiple = fields.integer("block_multiple_of", default=256)
    if fields.flag("block_auto_adjust_ff_dim", default=True):
        size = int(multiplier * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return Gated(size)


def hf_lfm_model(fields: Fields, name: str, layers: list[Layer]) -> ModelConfig:
    """Return the whole of a model."""
    tied = fields.flag("tie_embedding", default=True)
    return hf_model(fields, name, layers, THETA, tied=tied, own_kinds=True, eps="norm_eps")


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    return named(sources, config).out


def named(
    sources: Sources, config: ModelConfig, of_layer: Mapping[str, Role] = OF_LAYER
) -> Rearranged:
    """Return the tensors with those of all layers, but for experts, under their usual names."""
    tensors = Rearranged(sources)
    tensors.rename("model.embedding_norm.weight", usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        for name, role in of_layer.items():
            give(tensors, f"{folder}.{name}.weight", role, number)
        give_conv(tensors, f"{folder}.conv.conv.weight", layer.state, number)
    return tensors


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    n_layers = gguf_n_layers(fields, sources)
    layers = gguf_layers(fields, sources, [gguf_gated(fields, sources)] * n_layers)
    return gguf_model(fields, sources, "lfm2", layers, THETA)


def gguf_layers(fields: Fields, sources: Sources, ffns: Sequence[Gated | Experts]) -> list[Layer]:
    """Return layers of attention where there are KV heads, and of convolutions elsewhere."""
    attending, has_attention = gguf_heads(fields, len(ffns))
    taps = fields.integer(f"{arch_of(fields)}.shortconv.l_cache")
    mixers: dict[str, Mixer] = {
        "conv": ShortConv(taps),
        "full_attention": gguf_attention(attending, sources, qk_norm="head"),
    }
    return layers_of(mixers, [KINDS[attends] for attends in has_attention], ffns)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; the output's norm is called the embedding's."""
    tensors = Rearranged(sources)
    tensors.rename("token_embd_norm.weight", usual(Role.OUTPUT_NORM, column=GGUF))
    for number, layer in enumerate(config.layers):
        folder = f"blk.{number}.shortconv"
        give(tensors, f"{folder}.in_proj.weight", Role.STATE_IN, number, GGUF)
        give(tensors, f"{folder}.out_proj.weight", Role.STATE_OUT, number, GGUF)
        give_conv(tensors, f"{folder}.conv.weight", layer.state, number, GGUF)
    return tensors.out


FAMILY = Family(
    "lfm2",
    from_hf,
    "lfm2",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
