"""Qwen 3.5's language model: Qwen 3 Next without experts and without fused matrices."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import gated_of, trunk_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen3_next import delta_model_of, gguf_named, named
from lanewise.loading.families.states import give
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

NAME = "qwen3_5_text"
INPUTS = {
    "in_proj_qkv": Role.STATE_IN,
    "in_proj_z": Role.STATE_GATE,
    "in_proj_a": Role.STATE_DECAY,
    "in_proj_b": Role.STATE_BETA,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file, or the text_config of a config.json."""
    ffns = [gated_of(file)] * trunk_layers_of(file)
    return delta_model_of(file, NAME, ffns, in_turn=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    named(tensors, config)
    for number in range(config.n_layers):
        for name, role in INPUTS.items():
            give(tensors, f"model.layers.{number}.linear_attn.{name}.weight", role, number)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    gguf_named(tensors, config)


FAMILY = Family(
    NAME,
    program,
    "qwen35",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
