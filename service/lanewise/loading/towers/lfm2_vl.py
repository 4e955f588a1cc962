"""LFM2-VL: SigLIP 2 for pictures of any shape, blocks read as one, a norm, two matrices."""

from __future__ import annotations

from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Dense, ModelConfig
from lanewise.loading.families.common import curve
from lanewise.loading.families.naming import give_roles
from lanewise.loading.towers.siglip import DEFAULTS, gguf_siglip, hf_siglip, siglip_model
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import Tower, TowerFile

EPS = 1e-5  # of the projector's norm, as its code has it


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    bias = file.flag("projector_bias", default=True)
    activation = "gelu" if file.is_gguf else curve(file, "projector_hidden_act", "gelu")
    inner = file.rows_of("mm.1.weight") if file.is_gguf else file.integer("projector_hidden_size")
    norm: dict[str, Any] = {}
    if (
        "mm.input_norm.weight" in file.tensors
        if file.is_gguf
        else file.flag("projector_use_layernorm", default=True)
    ):
        norm = {"input_norm": "layer", "input_eps": round_to_f32(EPS)}
    return siglip_model(
        file,
        "lfm2_vl",
        file.integer("downsample_factor"),
        (Dense(inner, bias, activation, **norm), Dense(file.integer("text_width"), bias)),
        positions="resampled",
    )


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory, whose patches have their colours last."""
    give_roles(tensors, "multi_modal_projector.layer_norm", Role.DENSE_INPUT_NORM)
    for number in range(2):
        give_roles(tensors, f"multi_modal_projector.linear_{number + 1}", Role.DENSE, number)
    tensors.remove_prefixes("vision_tower.", "vision_model.")
    tensors.turn_columns("embeddings.patch_embedding.weight", 3)
    hf_siglip(tensors, config)


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    give_roles(tensors, "mm.input_norm", Role.DENSE_INPUT_NORM)
    for number, name in enumerate(("mm.1", "mm.2")):
        give_roles(tensors, name, Role.DENSE, number)
    gguf_siglip(tensors, config)


TOWER = Tower(
    names=("lfm2_vl",),
    projector="lfm2",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={
        "downsample_factor": 2,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": 2560,
        "projector_bias": True,
        "projector_use_layernorm": True,
    },
    defaults=dict(DEFAULTS)
    | {"hidden_size": 768, "num_attention_heads": 12, "patch_size": 16, "num_patches": 256},
    preprocessor={"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    image_token="<image>",
    tensors=("vision_tower.", "multi_modal_projector."),
)
