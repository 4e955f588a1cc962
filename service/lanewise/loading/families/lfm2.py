"""LFM2: short convolutions in place of most layers' attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import (
    Experts,
    Gated,
    ModelConfig,
)
from lanewise.loading.base.recurrences import ShortConv
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.states import (
    Mixer,
    check_no_bias,
    gguf_heads,
    give,
    give_conv,
    layers_of,
    own_kinds,
)
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

KINDS = ("conv", "full_attention")
THETA = 1e6  # by default
# Names in a layer of a directory to roles.
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


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    for key in ("block_use_swiglu", "use_pos_enc"):
        if not file.flag(key, default=True):
            raise file.fail(key, "true")
    ffn = gated_of(file) if file.is_gguf else hf_lfm_gated(file)
    return lfm_of(file, "lfm2", [ffn] * n_layers_of(file), attending(file))


def lfm_of(
    file: ModelFile, name: str, ffns: Sequence[Gated | Experts], default: Sequence[str] | None
) -> ModelConfig:
    """Return the program; ``default`` are the layers' kinds if the file names none.

    In a GGUF file, layers with KV heads have attention.
    """
    check_no_bias(file, "conv_bias")
    attending = file
    if file.is_gguf:
        attending, has_attention = gguf_heads(file)
        kinds = [KINDS[attends] for attends in has_attention]
    else:
        kinds = own_kinds(file, "layer_types", KINDS, len(ffns), default)
    mixers: dict[str, Mixer] = {
        "conv": ShortConv(file.integer("conv_L_cache")),
        "full_attention": attention_of(attending, qk_norm="head"),
    }
    layers, tied = layers_of(mixers, kinds, ffns), file.flag("tie_embedding", default=True)
    return model_of(file, name, layers, THETA, tied=tied, own_kinds=True, eps="norm_eps")


def attending(file: ModelFile) -> list[str] | None:
    """Return each layer's kind by the list of attention layers; null means all layers."""
    if file.is_gguf:
        return None
    n_layers = n_layers_of(file)
    numbers = file.raw("full_attn_idxs")
    if numbers is None:
        numbers = list(range(n_layers))
    if not isinstance(numbers, list) or not all(
        type(number) is int and 0 <= number < n_layers for number in numbers
    ):
        raise file.fail("full_attn_idxs", f"a list of layers from 0 to {n_layers - 1}")
    with_attention = set(numbers)
    return [KINDS[number in with_attention] for number in range(n_layers)]


def hf_lfm_gated(file: ModelFile) -> Gated:
    """Return a gated FFN, whose size is rounded up from a share of the config's."""
    size = file.integer("intermediate_size", default=12288)
    size = file.integer("block_ff_dim", default=size)
    multiplier = file.number("block_ffn_dim_multiplier", default=1.0)
    multiple = file.integer("block_multiple_of", default=256)
    if file.flag("block_auto_adjust_ff_dim", default=True):
        size = int(multiplier * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return Gated(size)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    named(tensors, config)


def named(
    tensors: Rearranged, config: ModelConfig, of_layer: Mapping[str, Role] = OF_LAYER
) -> None:
    """Rename all tensors but experts."""
    tensors.rename("model.embedding_norm.weight", tensors.usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        for name, role in of_layer.items():
            give(tensors, f"{folder}.{name}.weight", role, number)
        give_conv(tensors, f"{folder}.conv.conv.weight", layer.state, number)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the output norm has the name of an embedding norm."""
    tensors.rename("token_embd_norm.weight", tensors.usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"blk.{number}.shortconv"
        give(tensors, f"{folder}.in_proj.weight", Role.STATE_IN, number)
        give(tensors, f"{folder}.out_proj.weight", Role.STATE_OUT, number)
        give_conv(tensors, f"{folder}.conv.weight", layer.state, number)


FAMILY = Family(
    "lfm2", program, "lfm2", hf_tensors=hf_tensors, gguf_tensors=gguf_tensors, gguf_is_usual=False
)
