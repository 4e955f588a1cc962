"""Gemma 3, MedGemma, ShieldGemma 2: SigLIP, the mean of each block, a norm, one matrix."""

from __future__ import annotations

from math import isqrt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Dense, ModelConfig
from lanewise.loading.towers.siglip import DEFAULTS, gguf_siglip, hf_siglip, siglip_model
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import (
    TextFacts,
    Tower,
    TowerFile,
    seeing_ahead,
    side_in_patches,
)

MERGE = 4  # of mmproj files that do not say


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    eps = round_to_f32(file.number("layer_norm_eps"))
    return siglip_model(
        file,
        "gemma3",
        merge_of(file),
        (Dense(file.integer("text_width"), input_norm="rms", input_eps=eps),),
        mean_of_block=True,
    )


def merge_of(file: TowerFile) -> int:
    """Return the side of a block."""
    if file.is_gguf:
        return file.integer("scale_factor", default=MERGE)
    side, rows = side_in_patches(file), file.integer("mm_tokens_per_image")
    if side % isqrt(rows) or isqrt(rows) ** 2 != rows:
        raise file.fail("mm_tokens_per_image", f"the square of a divisor of {side}")
    return side // isqrt(rows)


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory."""
    norm = tensors.usual(Role.DENSE_INPUT_NORM)
    tensors.rename("multi_modal_projector.mm_soft_emb_norm.weight", norm)
    tensors.add_one(norm)
    matrix = tensors.usual(Role.DENSE)
    tensors.rename("multi_modal_projector.mm_input_projection_weight", matrix)
    tensors.transpose(matrix)
    hf_siglip(tensors, config, "vision_tower.", "vision_model.")


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file, which has the 1 of the norm already."""
    tensors.rename("mm.soft_emb_norm.weight", tensors.usual(Role.DENSE_INPUT_NORM))
    matrix = tensors.usual(Role.DENSE)
    tensors.rename("mm.input_projection.weight", matrix)
    tensors.transpose(matrix)
    gguf_siglip(tensors, config)


def text(config: ModelConfig, facts: TextFacts) -> ModelConfig:
    """Return the language model, whose tokens of a picture see all of it in every layer."""
    return seeing_ahead(config)


TOWER = Tower(
    names=("gemma3",),
    projector="gemma3",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={"mm_tokens_per_image": 256},
    defaults=dict(DEFAULTS) | {"hidden_size": 768, "num_attention_heads": 12, "patch_size": 16},
    preprocessor={"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    image_token="<image_soft_token>",
    tensors=("vision_tower.", "multi_modal_projector."),
    text=text,
)
