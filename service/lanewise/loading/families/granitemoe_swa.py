"""Granite with windows, attention sinks and experts, perhaps beside a shared one."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import granitemoehybrid
from lanewise.loading.families.family import Family
from lanewise.loading.families.granite_swa import own_experts, program_of
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a config; GGUF files are those of granite_swa."""
    return program_of(file, "granitemoe_swa", own_experts(file))


FAMILY = Family(
    "granitemoe_swa",
    program,
    hf_tensors=granitemoehybrid.hf_tensors,
    gguf_interleaved_rope=True,
)
