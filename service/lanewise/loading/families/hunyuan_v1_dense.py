"""Hunyuan, dense: queries and keys are normalized after RoPE."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    check_values,
    gated_of,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import rope_settings

MUST_BE = {
    "use_qk_norm": (True,),
    "use_cla": (False,),
    "use_mla": (False,),
    "use_rotary_pos_emb": (True,),
    "num_experts": (None, 1),
    "norm_type": ("rms", "hf_rms", "fused"),
}
NORMS = {"self_attn.query_layernorm": Role.ATTN_Q_NORM, "self_attn.key_layernorm": Role.ATTN_K_NORM}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    attention = attention_of(file, qk_norm="turned")
    layers = [Layer(attention, gated_of(file))] * n_layers_of(file)
    return model_of(stretched(file, attention.head_dim), "hunyuan_v1_dense", layers)


def stretched(file: ModelFile, head_dim: int) -> ModelFile:
    """Return a config.json with the larger RoPE base that an alpha means.

    Dynamic scaling with an alpha is the same at all lengths; GGUF files have this base.
    """
    settings = rope_settings(file)
    if settings.values.get("rope_type") != "dynamic" or not settings.is_set("alpha"):
        return file
    alpha = settings.number("alpha")
    if head_dim <= 2:
        raise file.fail("head_dim", "a number above 2, with an alpha,")
    theta = settings.number("rope_theta", default=10000.0)
    plain = {"rope_type": "default", "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}
    return file.replacing({"rope_parameters": plain, "rope_scaling": None, "rope_theta": None})


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the norms of queries and keys."""
    give_layer_roles(tensors, config, NORMS)


FAMILY = Family(
    "hunyuan_v1_dense", program, "hunyuan-dense", hf_tensors=hf_tensors, gguf_is_usual=False
)
