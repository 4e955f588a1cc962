"""XLM-RoBERTa: RoBERTa for a hundred languages."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.roberta import hf_tensors, roberta_model
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    return roberta_model(file, "xlm-roberta")


FAMILY = encoder_family("xlm-roberta", program, hf_tensors)
