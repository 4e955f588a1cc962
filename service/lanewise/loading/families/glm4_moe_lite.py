"""GLM-4.7-Flash: DeepSeek V3's layers, the first one dense."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.deepseek_v3 import deepseek_of, first_sparse_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json; in GGUF files it is deepseek2."""
    return deepseek_of(file, "glm4_moe_lite", first_sparse_of(file, 1))


FAMILY = Family(
    "glm4_moe_lite",
    program=program,
    hf_tensors=hf_latent_tensors,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    has_mtp=True,
)
