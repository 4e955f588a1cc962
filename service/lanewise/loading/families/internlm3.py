"""InternLM 3: Llama, whose biases have names of their own in configs."""

from __future__ import annotations

from lanewise.loading.families.common import hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.sources import Sources

HEAD_DIM = 128  # of configs that do not say


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json; GGUF files of it say that they are Llama."""
    fields.ignore("qkv_bias", "bias")  # the tensors say it
    layer = Layer(hf_attention(fields, sources, HEAD_DIM), hf_gated(fields, sources))
    return hf_model(fields, "internlm3", [layer] * hf_n_layers(fields, sources))


FAMILY = Family("internlm3", from_hf)
