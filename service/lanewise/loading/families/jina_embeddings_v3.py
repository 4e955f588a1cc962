"""Jina embeddings v3: BERT with RoPE, without its adapters for tasks."""

from __future__ import annotations

from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.rotary_encoders import hf_tensors, rotary_model
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig, Plain
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    ffn = Plain(fields.integer("intermediate_size"), True, curve(fields, "hidden_act", "gelu"))
    return rotary_model(fields, sources, "jina_embeddings_v3", ffn, bias=True, theta=20000.0)


FAMILY = encoder_family("jina_embeddings_v3", from_hf, hf_tensors)
