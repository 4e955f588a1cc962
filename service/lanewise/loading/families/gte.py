"""GTE: BERT with RoPE and GeGLU."""

from __future__ import annotations

from lanewise.loading.families.encoders import curve, encoder_family
from lanewise.loading.families.rotary_encoders import hf_tensors, rotary_model
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Gated, ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    size, activation = fields.integer("intermediate_size"), curve(fields, "hidden_act", "gelu")
    ffn = Gated(size, activation=activation, down_bias=True)
    return rotary_model(fields, sources, "gte", ffn, bias=True, theta=160000.0)


FAMILY = encoder_family("gte", from_hf, hf_tensors)
