"""GLM-4 of 2024: Llama with gate and up in one matrix, half of each head turned by neighbours."""

from __future__ import annotations

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_gated,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.families.naming import GATE_UP, split_roles
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

HEAD_DIM, PARTIAL = 128, 0.5  # of configs that do not say; the share of each head that is turned


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    return hf_glm(fields, sources, "glm")


def hf_glm(
    fields: Fields, sources: Sources, name: str, *, result_norms: bool = False
) -> ModelConfig:
    """Return the whole of a model, perhaps with norms of what attention and FFN add."""
    attention = hf_attention(fields, sources, HEAD_DIM)
    layer = Layer(attention, hf_gated(fields, sources), result_norms=result_norms)
    return hf_model(fields, name, [layer] * hf_n_layers(fields, sources), partial=PARTIAL)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        split_roles(tensors, f"model.layers.{number}.mlp.gate_up_proj", GATE_UP, size, number)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    return gguf_glm(fields, sources, "glm")


def gguf_glm(
    fields: Fields, sources: Sources, name: str, *, result_norms: bool = False
) -> ModelConfig:
    """Return the whole of a model, perhaps with norms of what attention and FFN add."""
    attention = gguf_attention(fields, sources)
    layer = Layer(attention, gguf_gated(fields, sources), result_norms=result_norms)
    return gguf_model(fields, sources, name, [layer] * gguf_n_layers(fields, sources))


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart, which are called up."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        split_roles(tensors, f"blk.{number}.ffn_up", GATE_UP, size, number, GGUF)
    return tensors.out


FAMILY = Family(
    "glm",
    from_hf,
    "chatglm",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
