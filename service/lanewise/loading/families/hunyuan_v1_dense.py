"""Hunyuan, dense: queries and keys are normalized after they have turned."""

from __future__ import annotations

from collections.abc import Mapping

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    check_values,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.rope import rope_settings
from lanewise.loading.sources import Sources

MUST_BE = {
    "use_qk_norm": (True,),
    "use_cla": (False,),
    "use_mla": (False,),
    "use_rotary_pos_emb": (True,),
    "num_experts": (None, 1),
    "norm_type": ("rms", "hf_rms", "fused"),
}
NORMS = {"query_layernorm": Role.ATTN_Q_NORM, "key_layernorm": Role.ATTN_K_NORM}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    attention = hf_attention(fields, sources, qk_norm="turned")
    layer = Layer(attention, hf_gated(fields, sources))
    layers = [layer] * hf_n_layers(fields, sources)
    return hf_model(stretched(fields, attention.head_dim), "hunyuan_v1_dense", layers)


def stretched(fields: Fields, head_dim: int) -> Fields:
    """Return the fields with the larger base of positions that an alpha means, whatever else says.

    Dynamic scaling with an alpha is the same at all lengths.
    """
    settings = rope_settings(fields)
    given = settings.values
    if not isinstance(given, Mapping) or given.get("rope_type") != "dynamic":
        return fields
    if not settings.is_set("alpha"):
        return fields
    alpha = settings.number("alpha")
    if head_dim <= 2:
        raise fields.fail("head_dim", "a number above 2, with an alpha,")
    theta = settings.number("rope_theta", default=10000.0)
    plain = {"rope_type": "default", "rope_theta": theta * alpha ** (head_dim / (head_dim - 2))}
    return fields.replacing({"rope_parameters": plain, "rope_scaling": None, "rope_theta": None})


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give the norms of queries and keys their usual names."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        for name, role in NORMS.items():
            old = f"model.layers.{number}.self_attn.{name}.weight"
            tensors.rename(old, usual(role, number))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, whose base of positions is the larger one."""
    attention = gguf_attention(fields, sources, qk_norm="turned")
    layer = Layer(attention, gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "hunyuan_v1_dense", layers)


FAMILY = Family(
    "hunyuan_v1_dense",
    from_hf,
    "hunyuan-dense",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
)
