"""Gemma 4 12B, which has no layers for pictures: norms around one matrix, positions, one matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.patches import Patches
from lanewise.loading.base.program import Dense, ModelConfig, Pooling
from lanewise.loading.families.naming import give_roles
from lanewise.loading.files.rearranging import Rows
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    MOST_PATCHES,
    TextFacts,
    Tower,
    TowerFile,
    pad_to_groups,
    seeing_ahead,
)

EPS = round_to_f32(1e-5)  # of LayerNorms
COLOURS = 3


def program(file: TowerFile) -> ModelConfig:
    """Read a directory; a token is one patch of as many pixels as blocks of others have."""
    hidden, width = file.integer("mm_embed_dim"), file.integer("text_width")
    if file.integer("output_proj_dims", default=hidden) != hidden:
        raise file.fail("output_proj_dims", f"mm_embed_dim, {hidden},")
    side = file.square("patch_size") * file.integer("pooling_kernel_size")
    file.ignore("initializer_range")
    eps = round_to_f32(file.number("rms_norm_eps"))
    return ModelConfig(
        architecture="gemma4_unified",
        hidden_size=hidden,
        vocab_size=0,
        context_length=MOST_PATCHES,
        rms_norm_eps=EPS,
        tied_embeddings=True,
        ropes=(),
        layers=(),
        norm="layer",
        norm_bias=True,
        pooling=Pooling("none", dense=(Dense(width, input_norm="rms", input_eps=eps),)),
        learned_positions=True,
        n_positions=2 * file.integer("mm_posemb_size"),
        patches=Patches(
            *(side, 1, True, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
            positions="tables",
            norm=True,
            norm_first=True,
            input_norm=True,
        ),
    )


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory, whose patches have their colours last."""
    assert config.patches is not None
    values = COLOURS * config.patches.side**2
    tensors.remove_prefixes("vision_embedder.")
    give_roles(tensors, "patch_ln1", Role.PATCHES_INPUT_NORM)
    for role in (Role.PATCHES_INPUT_NORM, Role.PATCHES_INPUT_NORM_BIAS):
        by_colour(tensors, tensors.usual(role), values)
    tensors.turn_columns("patch_dense.weight", COLOURS)
    give_roles(tensors, "patch_dense", Role.PATCHES)
    give_roles(tensors, "patch_ln2", Role.PATCHES_NORM)
    give_roles(tensors, "pos_norm", Role.OUTPUT_NORM)
    give_roles(tensors, "embed_vision.embedding_projection", Role.DENSE)
    tables = tensors.usual(Role.POSITION_EMBEDDING)
    tensors.rename("pos_embedding", tables)
    tensors.flatten(tables)
    apart(tensors, tables, config.n_positions)
    pad_to_groups(tensors, config)
    tensors.add_ones(tensors.usual(Role.DENSE_INPUT_NORM), config.hidden_size)


def by_colour(tensors: TowerTensors, name: str, n: int) -> None:
    """Put the values of a vector in the order of colours, each by rows and columns."""

    def parts(rows: Rows) -> Mapping[str, Rows]:
        return {name: np.ascontiguousarray(rows.reshape(-1, COLOURS).T).reshape(-1)}

    tensors.take_rows(name, n, parts)


def apart(tensors: TowerTensors, name: str, n: int) -> None:
    """Put rows for columns of pictures before those for rows; they take turns."""

    def parts(rows: Rows) -> Mapping[str, Rows]:
        return {name: np.ascontiguousarray(rows.reshape(-1, 2).T).reshape(-1)}

    tensors.take_rows(name, n, parts)


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Do nothing: files of this kind are not read yet."""


def text(config: ModelConfig, facts: TextFacts) -> ModelConfig:
    """Return the language model, in which tokens see their picture in all layers."""
    return seeing_ahead(config) if facts.both_ways == "vision" else config


TOWER = Tower(
    names=("gemma4_unified",),
    projector=None,
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={},
    defaults={
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "mm_embed_dim": 3840,
        "mm_posemb_size": 1120,
        "rms_norm_eps": 1e-6,
        "output_proj_dims": 3840,
        "initializer_range": 0.02,
    },
    preprocessor={"image_mean": [0.0] * 3, "image_std": [1.0] * 3},
    image_token="<|image|>",
    tensors=("vision_embedder.", "embed_vision."),
    text=text,
    normalizes=True,
)
