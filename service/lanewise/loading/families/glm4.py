"""GLM-4 of 2025 and Z1, dense: GLM with norms of attention's and FFN's results."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families import glm
from lanewise.loading.families.naming import give_layer_roles, split_gate_and_up
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# The norm before the FFN has its usual name already.
RESULT_NORMS = {
    "post_self_attn_layernorm": Role.ATTN_RESULT_NORM,
    "post_mlp_layernorm": Role.FFN_RESULT_NORM,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return glm.glm_of(file, "glm4", result_norms=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename these norms, and split gate and up."""
    split_gate_and_up(tensors, config)
    give_layer_roles(tensors, config, RESULT_NORMS)


FAMILY = replace(glm.FAMILY, name="glm4", program=program, gguf="glm4", hf_tensors=hf_tensors)
