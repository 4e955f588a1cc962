"""Qwen 3.5 with experts: its language model."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import qwen3_5
from lanewise.loading.families.common import trunk_layers_of
from lanewise.loading.families.experts import flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.families.qwen3_next import delta_experts, delta_model_of, gguf_named
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

NAME = "qwen3_5_moe_text"


def program(file: ModelFile) -> ModelConfig:
    """Read a file, or the text_config of a config.json."""
    ffns = [delta_experts(file)] * trunk_layers_of(file)
    return delta_model_of(file, NAME, ffns, in_turn=True)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, and make matrices of stacked experts."""
    gguf_named(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    NAME,
    program,
    "qwen35moe",
    hf_tensors=qwen3_5.hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
