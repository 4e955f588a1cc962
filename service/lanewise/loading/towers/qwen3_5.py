"""Qwen 3.5 and later: positions stretched over the picture and RoPE by row and column."""

from __future__ import annotations

from dataclasses import replace

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
from lanewise.loading.families.naming import QKV, give_layer_roles, give_roles, split_roles
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.towers.siglip import positions_of
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    CLIP_LAYER,
    CLIP_STATISTICS,
    MOST_PATCHES,
    Tower,
    TowerFile,
    pad_to_groups,
    padded,
    turned_by_axes,
    turned_by_halves,
)

MOST_TAPS = 3  # with two dense heads each
EPS, THETA = 1e-6, 10000.0  # as its code has them; mmproj files have the language model's epsilon
HF_LAYER = {
    "norm1": Role.ATTN_NORM,
    "norm2": Role.FFN_NORM,
    "attn.proj": Role.ATTN_OUTPUT,
    "mlp.linear_fc1": Role.FFN_UP,
    "mlp.linear_fc2": Role.FFN_DOWN,
}


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    heads, hidden = file.integer("num_heads"), file.integer("hidden_size")
    if hidden % heads or hidden // heads % 4:
        raise file.fail("num_heads", f"a divisor of {hidden} that leaves heads of 4, 8, 12, ...")
    file.check_colours("in_channels")
    n_layers = file.layers_of("depth")
    merge = file.integer("spatial_merge_size")
    attention = Attention(
        heads, heads, hidden // heads, 0, both_ways=True, qkv_bias=True, output_bias=True
    )
    ffn = Plain(
        padded(file.integer("intermediate_size")), True, curve(file, "hidden_act", "gelu_tanh")
    )
    wide, last = hidden * merge**2, Dense(file.integer("out_hidden_size"), bias=True)
    first = Dense(wide, bias=True, activation="gelu")
    tapped = replace(first, input_norm="layer", input_eps=round_to_f32(EPS))
    taps = taps_of(file, n_layers)
    dense = (first, last, *(tapped, last) * len(taps))
    return ModelConfig(
        architecture="qwen3_5",
        hidden_size=hidden,
        vocab_size=0,
        context_length=MOST_PATCHES,
        rms_norm_eps=round_to_f32(EPS),
        tied_embeddings=True,
        ropes=(turned_by_halves(THETA, hidden // heads, 0),),
        layers=(Layer(check_heads(attention, file.source), ffn),) * n_layers,
        norm="layer",
        norm_bias=True,
        pooling=Pooling("none", dense=dense),
        learned_positions=True,
        n_positions=positions_of(file, "num_position_embeddings"),
        patches=Patches(
            *(file.square("patch_size"), merge, True),
            *(file.three("image_mean"), file.three("image_std")),
            positions="stretched",
            taps=taps,
        ),
    )


def taps_of(file: TowerFile, n_layers: int) -> tuple[int, ...]:
    """Return the layers behind which rows are taken for the language model's first layers."""
    said = file.meant("deepstack_visual_indexes")
    if file.is_gguf:
        flags = file.meant("is_deepstack_layers") or []
        said = [number for number, flag in enumerate(flags) if flag]
    taps = tuple(said or ())
    rising = all(type(tap) is int for tap in taps) and list(taps) == sorted(set(taps))
    if not rising or len(taps) > MOST_TAPS or (taps and not 0 <= taps[0] <= taps[-1] < n_layers):
        raise file.fail("deepstack_visual_indexes", f"up to {MOST_TAPS} layers, in order,")
    return taps


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory; both frames that a patch reads are the same picture."""
    tensors.remove_prefixes("visual.")
    tensors.add_up("patch_embed.proj.weight", axis=2)
    give_roles(tensors, "patch_embed.proj", Role.PATCHES)
    tensors.rename("pos_embed.weight", tensors.usual(Role.POSITION_EMBEDDING))
    split_qkv(tensors, config, "blocks.{}.attn.qkv")
    give_layer_roles(tensors, config, HF_LAYER, "blocks.{}.")
    give_roles(tensors, "merger.norm", Role.OUTPUT_NORM)
    give_merger(tensors, "merger.linear_fc1", "merger.linear_fc2", 0)
    for number in range(n_taps_of(config)):
        folder = f"deepstack_merger_list.{number}"
        give_merger(tensors, f"{folder}.linear_fc1", f"{folder}.linear_fc2", number + 1)
        give_roles(tensors, f"{folder}.norm", Role.DENSE_INPUT_NORM, 2 * number + 2)
    pad_to_groups(tensors, config)


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    patches = tensors.usual(Role.PATCHES)
    tensors.add_up(patches, f"{patches}.1")
    tensors.rename("v.position_embd.weight", tensors.usual(Role.POSITION_EMBEDDING))
    split_qkv(tensors, config, "v.blk.{}.attn_qkv")
    give_layer_roles(tensors, config, CLIP_LAYER, "v.blk.{}.")
    give_roles(tensors, "v.post_ln", Role.OUTPUT_NORM)
    give_merger(tensors, "mm.0", "mm.2", 0)
    assert config.patches is not None
    for number, layer in enumerate(config.patches.taps):
        folder = f"v.deepstack.{layer}"
        give_merger(tensors, f"{folder}.fc1", f"{folder}.fc2", number + 1)
        give_roles(tensors, f"{folder}.norm", Role.DENSE_INPUT_NORM, 2 * number + 2)
    pad_to_groups(tensors, config)


def n_taps_of(config: ModelConfig) -> int:
    """Return the number of taps."""
    return 0 if config.patches is None else len(config.patches.taps)


def give_merger(tensors: TowerTensors, first: str, second: str, group: int) -> None:
    """Rename the two matrices that make rows of blocks; group 0 is the result, others are taps."""
    give_roles(tensors, first, Role.DENSE, 2 * group)
    give_roles(tensors, second, Role.DENSE, 2 * group + 1)


def split_qkv(tensors: TowerTensors, config: ModelConfig, name: str) -> None:
    """Split the fused rows of Q, K and V of each layer."""
    for number in range(config.n_layers):
        split_roles(tensors, name.format(number), QKV, config.hidden_size, number)


TOWER = Tower(
    names=("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
    projector="qwen3vl_merger",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={},
    defaults={
        "depth": 27,
        "hidden_size": 1152,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": 4304,
        "num_heads": 16,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": 3584,
        "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [],
    },
    preprocessor=CLIP_STATISTICS,
    image_token="<|image_pad|>",
    tensors=("visual.",),
    text=turned_by_axes,
    n_axes=3,
)
