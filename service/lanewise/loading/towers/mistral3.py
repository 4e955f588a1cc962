"""Mistral 3, with Pixtral's tower: RoPE by row and column, RMSNorm, gated FFNs."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.patches import Patches
from lanewise.loading.base.program import (
    Attention,
    Dense,
    Gated,
    Layer,
    ModelConfig,
    Pooling,
    Rope,
)
from lanewise.loading.families.common import curve
from lanewise.loading.families.naming import give_layer_roles, give_roles
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    CLIP_LAYER,
    CLIP_STATISTICS,
    MOST_PATCHES,
    Tower,
    TowerFile,
    pad_to_groups,
    padded,
    theta_of,
)

EPS, THETA = 1e-5, 10000.0
HF_LAYER = {
    "attention_norm": Role.ATTN_NORM,
    "ffn_norm": Role.FFN_NORM,
    "attention.q_proj": Role.ATTN_Q,
    "attention.k_proj": Role.ATTN_K,
    "attention.v_proj": Role.ATTN_V,
    "attention.o_proj": Role.ATTN_OUTPUT,
    "feed_forward.gate_proj": Role.FFN_GATE,
    "feed_forward.up_proj": Role.FFN_UP,
    "feed_forward.down_proj": Role.FFN_DOWN,
}


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    heads, hidden = file.integer("num_attention_heads"), file.integer("hidden_size")
    head_dim = file.integer("head_dim", default=hidden // heads or 1)
    if head_dim % 4:
        raise file.fail("head_dim", "a multiple of 4")
    n_layers = file.layers_of()
    file.check_colours()
    feature = file.meant("vision_feature_layer")
    if not file.is_gguf and feature != -1:
        raise file.fail("vision_feature_layer", "-1")
    file.ignore("image_size")  # a bound of what it was trained with
    merge, width = file.integer("spatial_merge_size", default=1), file.integer("text_width")
    attention = Attention(heads, heads, head_dim, 0, both_ways=True)
    ffn = Gated(padded(file.integer("intermediate_size")), activation=activation_of(file))
    bias = file.flag("multimodal_projector_bias", default=False)
    middle = "gelu" if file.is_gguf else curve(file, "projector_hidden_act", "gelu")
    dense = (Dense(hidden), Dense(width, bias, middle), Dense(width, bias))
    return ModelConfig(
        architecture="mistral3",
        hidden_size=hidden,
        vocab_size=0,
        context_length=MOST_PATCHES,
        rms_norm_eps=round_to_f32(EPS),
        tied_embeddings=True,
        ropes=(turned(head_dim, theta_of(file, THETA)),),
        layers=(Layer(check_heads(attention, file.source), ffn),) * n_layers,
        pooling=Pooling("none", dense=dense),
        patches=Patches(
            *(file.square("patch_size"), merge, False),
            *(file.three("image_mean"), file.three("image_std")),
            norm=True,
            output_eps=round_to_f32(file.number("text_eps")),
        ),
    )


def activation_of(file: TowerFile) -> str:
    """Return the gate's activation; mmproj files call the exact GELU by the name of all."""
    name = file.text("hidden_act", default="gelu")
    return "gelu" if file.is_gguf and name != "silu" else curve(file, "hidden_act", "gelu")


def turned(head_dim: int, theta: float) -> Rope:
    """Return RoPE whose first half of pairs turns by row, the second by column, in turns."""
    all_of = [round_to_f32(theta ** (-2 * i / head_dim)) for i in range(head_dim // 2)]
    quarter = head_dim // 4
    return Rope(
        theta,
        head_dim,
        frequencies=(*all_of[0::2], *all_of[1::2]),
        axes=(0,) * quarter + (1,) * quarter,
    )


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory."""
    projector = "multi_modal_projector"
    give_roles(tensors, f"{projector}.norm", Role.OUTPUT_NORM)
    give_roles(tensors, f"{projector}.patch_merger.merging_layer", Role.DENSE)
    for number in (1, 2):
        give_roles(tensors, f"{projector}.linear_{number}", Role.DENSE, number)
    tensors.remove_prefixes("vision_tower.")
    give_roles(tensors, "patch_conv", Role.PATCHES)
    give_roles(tensors, "ln_pre", Role.PATCHES_NORM)
    give_layer_roles(tensors, config, HF_LAYER, "transformer.layers.{}.")
    finish(tensors, config)


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    tensors.drop("v.token_embd.img_break")  # a row of the language model's embedding
    give_roles(tensors, "mm.input_norm", Role.OUTPUT_NORM)
    for number, name in enumerate(("mm.patch_merger", "mm.1", "mm.2")):
        give_roles(tensors, name, Role.DENSE, number)
    give_layer_roles(tensors, config, CLIP_LAYER, "v.blk.{}.")
    finish(tensors, config)


def finish(tensors: TowerTensors, config: ModelConfig) -> None:
    """Pad matrices to whole groups; inputs of the merging matrix are a block's rows in turn."""
    assert config.patches is not None
    tensors.turn_columns(tensors.usual(Role.DENSE), config.patches.merge**2)
    pad_to_groups(tensors, config)


TOWER = Tower(
    names=("mistral3",),
    projector="pixtral",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={
        "projector_hidden_act": "gelu",
        "vision_feature_layer": -1,
        "multimodal_projector_bias": False,
        "spatial_merge_size": 2,
    },
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 1024,
        "patch_size": 16,
        "hidden_act": "gelu",
    },
    preprocessor=CLIP_STATISTICS,
    image_token="[IMG]",
    tensors=("vision_tower.", "multi_modal_projector."),
    gguf_interleaved_rope=True,
)
