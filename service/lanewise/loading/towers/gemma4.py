"""Gemma 4: norms around each part, RoPE by column and row, the mean of each block, one matrix."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

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
)
from lanewise.loading.families.common import curve
from lanewise.loading.families.naming import give_layer_roles, give_roles
from lanewise.loading.files.rearranging import Rows
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    CLIP_MATRICES,
    CLIP_NORMS,
    MOST_PATCHES,
    TextFacts,
    Tower,
    TowerFile,
    pad_to_groups,
    padded,
    seeing_ahead,
    theta_of,
    turned_by_halves,
)

THETA, MERGE, EPS = 100.0, 3, 1e-6
HALVES = (0.5, 0.5, 0.5)  # its code does 2 x - 1
NORMS = {
    "input_layernorm": Role.ATTN_NORM,
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "pre_feedforward_layernorm": Role.FFN_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
    "self_attn.q_norm": Role.ATTN_Q_NORM,
    "self_attn.k_norm": Role.ATTN_K_NORM,
}
GGUF_NORMS = {
    **CLIP_NORMS,
    "attn_post_norm": Role.ATTN_RESULT_NORM,
    "ffn_post_norm": Role.FFN_RESULT_NORM,
    "attn_q_norm": Role.ATTN_Q_NORM,
    "attn_k_norm": Role.ATTN_K_NORM,
}
# In the order of the clamps.
MATRICES = {
    "self_attn.q_proj": Role.ATTN_Q,
    "self_attn.k_proj": Role.ATTN_K,
    "self_attn.v_proj": Role.ATTN_V,
    "self_attn.o_proj": Role.ATTN_OUTPUT,
    "mlp.gate_proj": Role.FFN_GATE,
    "mlp.up_proj": Role.FFN_UP,
    "mlp.down_proj": Role.FFN_DOWN,
}
LIMITS = ("input_min", "input_max", "output_min", "output_max")


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    hidden, heads = file.integer("hidden_size"), file.integer("num_attention_heads")
    head_dim = file.integer("head_dim", default=hidden // heads or 1)
    if head_dim % 4:
        raise file.fail("head_dim", "a multiple of 4")
    n_layers = file.layers_of()
    if file.flag("attention_bias", default=False):
        raise file.fail("attention_bias", "false")
    eps = round_to_f32(EPS if file.is_gguf else file.number("rms_norm_eps"))
    attention = Attention(
        heads,
        file.integer("num_key_value_heads", default=heads),
        head_dim,
        0,
        both_ways=True,
        qk_norm="head",
        value_norm=True,
        score_scale=1.0,
    )
    activation = "gelu_tanh" if file.is_gguf else curve(file, "hidden_activation", "gelu_tanh")
    ffn = Gated(padded(file.integer("intermediate_size")), activation=activation)
    layer = Layer(
        check_heads(attention, file.source), ffn, result_norms=True, clamps=has_clamps(file)
    )
    merge = file.integer("scale_factor" if file.is_gguf else "pooling_kernel_size", default=MERGE)
    dense = (Dense(file.integer("text_width"), input_norm="rms", input_eps=eps),)
    return ModelConfig(
        architecture="gemma4",
        hidden_size=hidden,
        vocab_size=0,
        context_length=MOST_PATCHES,
        rms_norm_eps=eps,
        tied_embeddings=True,
        ropes=(turned_by_halves(theta_of(file, THETA), head_dim, 1),),  # first by column
        layers=(layer,) * n_layers,
        pooling=Pooling("none", dense=dense),
        learned_positions=True,
        n_positions=2 * positions_of(file),
        patches=Patches(
            *(file.square("patch_size"), merge, False, HALVES, HALVES),
            positions="tables",
            no_output_norm=True,
            mean_of_block=True,
            mean_factor=round_to_f32(sqrt(hidden)),
            shifts_mean=shifts_mean(file),
        ),
    )


def has_clamps(file: TowerFile) -> bool:
    """Return whether matrices clamp what they read and make."""
    if file.is_gguf:
        return "v.blk.0.attn_q.input_max" in file.tensors
    return file.flag("use_clipped_linears", default=False)


def shifts_mean(file: TowerFile) -> bool:
    """Return whether means of blocks are shifted and scaled."""
    if file.is_gguf:
        return "v.std_bias" in file.tensors
    return file.flag("standardize", default=False)


def positions_of(file: TowerFile) -> int:
    """Return the number of rows in each table of positions."""
    if not file.is_gguf:
        return file.integer("position_embedding_size")
    table = file.tensors.get("v.position_embd.weight")
    return table.shape[1] if table is not None and len(table.shape) == 3 else 1


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory, whose patches have their colours last."""
    give_roles(tensors, "embed_vision.embedding_projection", Role.DENSE)
    tensors.remove_prefixes("vision_tower.")
    tensors.turn_columns("patch_embedder.input_proj.weight", 3)
    give_roles(tensors, "patch_embedder.input_proj", Role.PATCHES)
    table = tensors.usual(Role.POSITION_EMBEDDING)
    tensors.rename("patch_embedder.position_embedding_table", table)
    tensors.rename("std_bias", tensors.usual(Role.MEAN_SHIFT))
    tensors.rename("std_scale", tensors.usual(Role.MEAN_SCALE))
    for number in range(config.n_layers):
        folder = f"encoder.layers.{number}"
        gather_clamps(tensors, [f"{folder}.{name}" for name in MATRICES], number)
        for name, role in MATRICES.items():
            give_roles(tensors, f"{folder}.{name}.linear", role, number)
    give_layer_roles(tensors, config, NORMS, "encoder.layers.{}.")
    finish(tensors, config)


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    tensors.rename("v.position_embd.weight", tensors.usual(Role.POSITION_EMBEDDING))
    give_roles(tensors, "mm.input_projection", Role.DENSE)
    for number in range(config.n_layers):
        gather_clamps(tensors, [f"v.blk.{number}.{name}" for name in CLIP_MATRICES], number)
    give_layer_roles(tensors, config, {**CLIP_MATRICES, **GGUF_NORMS}, "v.blk.{}.")
    finish(tensors, config)


def gather_clamps(tensors: TowerTensors, names: list[str], number: int) -> None:
    """Make a layer's clamps of the limits of its matrices."""
    limits = [f"{name}.{limit}" for name in names for limit in LIMITS]
    tensors.gather(limits, tensors.usual(Role.CLAMPS, number))


def finish(tensors: TowerTensors, config: ModelConfig) -> None:
    """Pad matrices to whole groups, put the dimensions of heads in order, add a norm of ones."""
    pad_to_groups(tensors, config)
    tensors.flatten(tensors.usual(Role.POSITION_EMBEDDING))
    tensors.add_ones(tensors.usual(Role.DENSE_INPUT_NORM), config.hidden_size)
    heads = config.heads
    for number in range(config.n_layers):
        order_halves(tensors, tensors.usual(Role.ATTN_Q, number), heads.n_heads, heads.head_dim)
        order_halves(tensors, tensors.usual(Role.ATTN_K, number), heads.n_kv_heads, heads.head_dim)
        for norm in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM):
            order_halves(tensors, tensors.usual(norm, number), 1, heads.head_dim)


def order_halves(tensors: TowerTensors, name: str, heads: int, dim: int) -> None:
    """Let the two dimensions of each RoPE pair be half a head apart; they were a quarter apart."""

    def parts(rows: Rows) -> Mapping[str, Rows]:
        quarters = rows.reshape(heads, 2, 2, dim // 4)  # axis, half of its pairs
        return {name: np.ascontiguousarray(quarters.swapaxes(1, 2)).reshape(-1)}

    tensors.take_rows(name, heads * dim, parts)


def text(config: ModelConfig, facts: TextFacts) -> ModelConfig:
    """Return the language model; in windowed layers of large ones tokens see their picture."""
    if facts.both_ways != "vision":
        return config
    return seeing_ahead(config, windowed_only=True)


TOWER = Tower(
    names=("gemma4",),
    projector="gemma4v",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={},
    defaults={
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 16,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "pooling_kernel_size": 3,
        "patch_size": 16,
        "position_embedding_size": 10240,
        "use_clipped_linears": False,
        "standardize": False,
    },
    preprocessor={"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    image_token="<|image|>",
    tensors=("vision_tower.", "embed_vision."),
    text=text,
    normalizes=True,
    row_token_id=0,
)
