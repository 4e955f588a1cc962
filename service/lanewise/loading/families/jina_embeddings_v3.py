"""Jina embeddings v3: BERT with RoPE, without its LoRA adapters for tasks."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig, Plain
from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.rotary_encoders import hf_tensors, rotary_model
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    ffn = Plain(file.integer("intermediate_size"), True, curve(file, "hidden_act", "gelu"))
    return rotary_model(file, "jina_embeddings_v3", ffn, bias=True, theta=20000.0)


FAMILY = encoder_family("jina_embeddings_v3", program, hf_tensors)
