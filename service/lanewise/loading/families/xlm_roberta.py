"""XLM-RoBERTa: RoBERTa in a hundred languages."""

from __future__ import annotations

from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.roberta import hf_tensors, roberta_model
from lanewise.loading.json_files import Fields
from lanewise.loading.program import ModelConfig
from lanewise.loading.sources import Sources


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    return roberta_model(fields, sources, "xlm-roberta")


FAMILY = encoder_family("xlm-roberta", from_hf, hf_tensors)
