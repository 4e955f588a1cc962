"""GLM-4 of 2024: Llama with fused gate and up; RoPE turns neighbours in half of each head."""

from __future__ import annotations

from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import split_gate_and_up
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.5  # share of each head that RoPE turns by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return glm_of(file, "glm")


def glm_of(file: ModelFile, name: str, *, result_norms: bool = False) -> ModelConfig:
    """Return the program, perhaps with norms of attention's and FFN's results."""
    layer = Layer(attention_of(file), gated_of(file), result_norms=result_norms)
    return model_of(file, name, [layer] * n_layers_of(file), partial=PARTIAL)


FAMILY = Family(
    "glm",
    program,
    "chatglm",
    hf_tensors=split_gate_and_up,
    gguf_tensors=split_gate_and_up,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
