"""StableLM and StableLM 2: LayerNorm, quarter-turned heads."""

from __future__ import annotations

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

PARTIAL = 0.25  # of each head is turned, where the config does not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    if fields.flag("qk_layernorm", default=False):
        raise fields.fail("qk_layernorm", "false (LayerNorm of queries and keys is not supported)")
    if fields.flag("use_parallel_residual", default=False):
        raise fields.fail("use_parallel_residual", "false")
    bias = fields.flag("use_qkv_bias", default=False)
    layer = Layer(hf_attention(fields, sources, qkv_bias=bias), hf_gated(fields, sources))
    layers = [layer] * hf_n_layers(fields, sources)
    eps = "layer_norm_eps"
    return hf_model(
        fields, "stablelm", layers, partial=PARTIAL, eps=eps, norm="layer", norm_bias=True
    )


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    key = f"{arch_of(fields)}.use_parallel_residual"
    if fields.flag(key, default=False) and "blk.0.ffn_norm.weight" not in sources:
        raise fields.fail(key, "false")
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources))
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "stablelm", layers, norm="layer")


FAMILY = Family(
    "stablelm",
    from_hf,
    "stablelm",
    from_gguf,
    gguf_is_usual=False,
    harmless=("rotary_scaling_factor", "norm_eps"),
)
