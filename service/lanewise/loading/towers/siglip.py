"""SigLIP: patches with learned positions, layers with LayerNorm and biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.patches import Patches
from lanewise.loading.base.program import (
    Attention,
    Dense,
    Layer,
    ModelConfig,
    Plain,
    Pooling,
)
from lanewise.loading.families.common import curve
from lanewise.loading.families.naming import give_layer_roles, give_roles
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    CLIP_LAYER,
    MOST_PATCHES,
    TowerFile,
    pad_to_groups,
    padded,
    side_in_patches,
)

DEFAULTS: Mapping[str, object] = {  # of its configs in transformers
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
HF_LAYER = {
    "layer_norm1": Role.ATTN_NORM,
    "layer_norm2": Role.FFN_NORM,
    "self_attn.q_proj": Role.ATTN_Q,
    "self_attn.k_proj": Role.ATTN_K,
    "self_attn.v_proj": Role.ATTN_V,
    "self_attn.out_proj": Role.ATTN_OUTPUT,
    "mlp.fc1": Role.FFN_UP,
    "mlp.fc2": Role.FFN_DOWN,
}


def siglip_model(
    file: TowerFile, name: str, merge: int, dense: tuple[Dense, ...], **more: Any
) -> ModelConfig:
    """Return the program of a tower; ``dense`` makes rows of blocks.

    ``more`` are fields of Patches; without positions among them pictures are squares.
    """
    heads, hidden = file.integer("num_attention_heads"), file.integer("hidden_size")
    if hidden % heads:
        raise file.fail("num_attention_heads", f"a divisor of the hidden size {hidden}")
    file.check_colours()
    n_layers = file.layers_of()
    side = side_in_patches(file) if "positions" not in more else isqrt(positions_of(file))
    if side % merge and "positions" not in more:
        raise file.fail("image_size", f"a multiple of {merge} patches")
    attention = Attention(
        heads, heads, hidden // heads, None, both_ways=True, qkv_bias=True, output_bias=True
    )
    ffn = Plain(
        padded(file.integer("intermediate_size")), True, curve(file, "hidden_act", "gelu_tanh")
    )
    return ModelConfig(
        architecture=name,
        hidden_size=hidden,
        vocab_size=0,
        context_length=side**2 if "positions" not in more else MOST_PATCHES,
        rms_norm_eps=round_to_f32(file.number("layer_norm_eps")),
        tied_embeddings=True,
        ropes=(),
        layers=(Layer(check_heads(attention, file.source), ffn),) * n_layers,
        norm="layer",
        norm_bias=True,
        pooling=Pooling("none", dense=dense),
        learned_positions=True,
        n_positions=side**2,
        patches=Patches(
            *(file.square("patch_size"), merge, True),
            *(file.three("image_mean"), file.three("image_std")),
            **more,
        ),
    )


def positions_of(file: TowerFile, name: str = "num_patches") -> int:
    """Return the number of learned positions, those of a square, where pictures are none."""
    if file.is_gguf:
        return side_in_patches(file) ** 2
    return file.integer(name)


def hf_siglip(tensors: TowerTensors, config: ModelConfig, *prefixes: str) -> None:
    """Rename the tensors of a directory, whose names begin with one of ``prefixes``."""
    tensors.remove_prefixes(*prefixes)
    give_roles(tensors, "embeddings.patch_embedding", Role.PATCHES)
    tensors.rename("embeddings.position_embedding.weight", tensors.usual(Role.POSITION_EMBEDDING))
    tensors.drop("embeddings.position_ids")
    give_layer_roles(tensors, config, HF_LAYER, "encoder.layers.{}.")
    give_roles(tensors, "post_layernorm", Role.OUTPUT_NORM)
    pad_to_groups(tensors, config)


def gguf_siglip(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    tensors.rename("v.position_embd.weight", tensors.usual(Role.POSITION_EMBEDDING))
    for number in range(config.n_layers):
        exchange_if_old(tensors, config, number)
    give_layer_roles(tensors, config, CLIP_LAYER, "v.blk.{}.")
    give_roles(tensors, "v.post_ln", Role.OUTPUT_NORM)
    pad_to_groups(tensors, config)


def exchange_if_old(tensors: TowerTensors, config: ModelConfig, number: int) -> None:
    """Exchange up and down of a layer if a file names them by the other's name, as old ones do."""
    up, down = (f"v.blk.{number}.ffn_{name}" for name in ("up", "down"))
    inputs, size = config.hidden_size, config.ffn_size(number)
    found = tensors.out.get(f"{up}.weight")
    is_old = found is not None and len(found.shape) == 2 and found.shape[0] == inputs
    if found is None or not is_old or padded(found.shape[1]) != size or inputs == size:
        return
    for end in ("weight", "bias"):
        tensors.rename(f"{up}.{end}", "")
        tensors.rename(f"{down}.{end}", f"{up}.{end}")
        tensors.rename("", f"{down}.{end}")
