"""StableLM and StableLM 2: LayerNorm, quarter-turned heads; 12B has norms of each head."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.cohere import with_flat_norms
from lanewise.loading.families.common import has, hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import usual
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL = 0.25  # of each head is turned, where the config does not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    qkv_bias = fields.flag("use_qkv_bias", default=False)
    qk_norm = "layer" if fields.flag("qk_layernorm", default=False) else "none"
    attention = hf_attention(fields, sources, qkv_bias=qkv_bias, qk_norm=qk_norm)
    one_norm = fields.flag("use_parallel_residual", default=False)
    layer = layer_of(attention, hf_gated(fields, sources), one_norm)
    layers = [layer] * hf_n_layers(fields, sources)
    eps = "layer_norm_eps"
    return hf_model(
        fields, "stablelm", layers, partial=PARTIAL, eps=eps, norm="layer", norm_bias=True
    )


def layer_of(attention: Attention, ffn: Gated, one_norm: bool) -> Layer:
    """Return a layer whose attention and FFN read one norm, or one behind the other."""
    return Layer(attention, ffn, wiring="parallel_one_norm" if one_norm else "in_turn")


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, which says wrongly of some files that attention and FFN are side by side."""
    fields.ignore(f"{arch_of(fields)}.use_parallel_residual")
    one_norm = not has(sources, Role.FFN_NORM, GGUF)
    qk_norm = "layer" if has(sources, Role.ATTN_Q_NORM, GGUF) else "none"
    attention = gguf_attention(fields, sources, qk_norm=qk_norm)
    layer = layer_of(attention, gguf_gated(fields, sources), one_norm)
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "stablelm", layers, norm="layer")


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Put norms of heads, each of which is a tensor, one below the other."""
    tensors, attention = Rearranged(sources), config.heads
    counts = {"q": attention.n_heads, "k": attention.n_kv_heads}
    for number in range(config.n_layers if attention.qk_norm == "layer" else 0):
        for kind, n_heads in counts.items():
            folder = f"model.layers.{number}.self_attn.{kind}_layernorm.norms"
            role = Role.ATTN_Q_NORM if kind == "q" else Role.ATTN_K_NORM
            tensors.stack(
                [f"{folder}.{head}.weight" for head in range(n_heads)], usual(role, number)
            )
    return tensors.out


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Make vectors of the norms of all heads."""
    return with_flat_norms(sources, config, GGUF)


FAMILY = Family(
    "stablelm",
    from_hf,
    "stablelm",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
