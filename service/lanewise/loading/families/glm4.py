"""GLM-4 of 2025 and Z1, dense: GLM with norms of what attention and FFN add."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families import glm
from lanewise.loading.families.naming import usual
from lanewise.loading.model_file import ModelFile
from lanewise.loading.program import ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

# The norm before the FFN has the name that it has elsewhere.
RESULT_NORMS = {
    "post_self_attn_layernorm": Role.ATTN_RESULT_NORM,
    "post_mlp_layernorm": Role.FFN_RESULT_NORM,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return glm.glm_of(file, "glm4", result_norms=True)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Name the norms of what is added, and take gate and up apart."""
    tensors = Rearranged(glm.hf_tensors(sources, config))
    for number in range(config.n_layers):
        for name, role in RESULT_NORMS.items():
            tensors.rename(f"model.layers.{number}.{name}.weight", usual(role, number))
    return tensors.out


FAMILY = replace(
    glm.FAMILY,
    name="glm4",
    program=program,
    gguf="glm4",
    hf_tensors=hf_tensors,
)
