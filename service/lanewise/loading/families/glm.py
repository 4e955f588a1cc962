"""GLM-4 of 2024: Llama with gate and up in one matrix, half of each head turned by neighbours."""

from __future__ import annotations

from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import GATE_UP, split_roles
from lanewise.loading.model_file import ModelFile
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL = 0.5  # of each head is turned, where the config does not say


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return glm_of(file, "glm")


def glm_of(file: ModelFile, name: str, *, result_norms: bool = False) -> ModelConfig:
    """Return the whole of a model, perhaps with norms of what attention and FFN add."""
    layer = Layer(attention_of(file), gated_of(file), result_norms=result_norms)
    return model_of(file, name, [layer] * n_layers_of(file), partial=PARTIAL)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        split_roles(tensors, f"model.layers.{number}.mlp.gate_up_proj", GATE_UP, size, number)
    return tensors.out


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take gate and up apart, which are called up."""
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        split_roles(tensors, f"blk.{number}.ffn_up", GATE_UP, size, number, GGUF)
    return tensors.out


FAMILY = Family(
    "glm",
    program,
    "chatglm",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
