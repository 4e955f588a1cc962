"""Idefics3, SmolVLM, SmolVLM 2, Granite-Docling: SigLIP, blocks read as one, one matrix."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Dense, ModelConfig
from lanewise.loading.families.naming import give_roles
from lanewise.loading.towers.siglip import DEFAULTS, gguf_siglip, hf_siglip, siglip_model
from lanewise.loading.towers.tensors import TowerTensors
from lanewise.loading.towers.tower import Tower, TowerFile


def program(file: TowerFile) -> ModelConfig:
    """Read a file of either kind."""
    dense = Dense(file.integer("text_width"))
    return siglip_model(file, "idefics3", file.integer("scale_factor"), (dense,))


def hf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of a directory."""
    give_roles(tensors, "connector.modality_projection.proj", Role.DENSE)
    hf_siglip(tensors, config, "vision_model.")


def gguf_tensors(tensors: TowerTensors, config: ModelConfig) -> None:
    """Rename the tensors of an mmproj file."""
    give_roles(tensors, "mm.model.fc", Role.DENSE)
    gguf_siglip(tensors, config)


TOWER = Tower(
    names=("idefics3", "smolvlm"),
    projector="idefics3",
    program=program,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    outer={"scale_factor": 2},
    defaults=DEFAULTS,
    preprocessor={"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
    image_token="<image>",
    tensors=("vision_model.", "connector."),
)
