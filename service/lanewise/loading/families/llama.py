"""Llama 2 and 3, and files that declare themselves `llama` (Mistral and Mixtral in GGUF)."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Layer, ModelConfig, Pooling
from lanewise.loading.families import mixtral
from lanewise.loading.families.common import (
    attention_of,
    gated_of,
    model_of,
    window_of,
    windows_of,
    with_both_ways,
    with_windows,
)
from lanewise.loading.families.encoders import classifier
from lanewise.loading.families.encoders_gguf import gguf_text_pooling
from lanewise.loading.families.experts import flatten_gguf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

SCORE = "score"  # the head of NVIDIA's rerankers
POOLINGS = {"avg": "mean", "cls": "cls", "last": "last"}


def program(file: ModelFile) -> ModelConfig:
    """Read a file; GGUF files of Mistral and Mixtral are llama, too."""
    if file.is_gguf and file.integer("num_experts", default=0, least=0):
        return mixtral.program(file)
    layer = Layer(attention_of(file), gated_of(file))
    window = window_of(file) if file.is_gguf else None
    return model_of(file, "llama", with_windows(layer, windows_of(file, window)))


def both_ways_program(file: ModelFile) -> ModelConfig:
    """Read a file of NVIDIA's embedders and rerankers, whose tokens see the whole text."""
    if file.is_gguf:
        file.ignore("{arch}.attention.causal")
        model = with_both_ways(program(file), file, "{arch}.attention.causal")
        pooling, _ = gguf_text_pooling(file, dict(file.tensors))
        return replace(model, pooling=replace(pooling or Pooling(), normalize=False))
    model = with_both_ways(program(file), file, "model_type")
    kind, temperature = file.text("pooling", default="avg"), file.number("temperature", default=1.0)
    if f"{SCORE}.weight" not in file.tensors:
        return replace(model, pooling=Pooling(POOLINGS.get(kind, "mean")))
    if kind not in POOLINGS:
        raise file.fail("pooling", " or ".join(map(repr, POOLINGS)))
    if temperature <= 0:
        raise file.fail("temperature", "a number above 0")
    return replace(model, pooling=Pooling(POOLINGS[kind], dense=(classifier(file.tensors, SCORE),)))


def score_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the head that scores texts; one that writes text is unused."""
    tensors.rename(f"{SCORE}.weight", tensors.usual(Role.DENSE))
    tensors.drop(tensors.usual(Role.OUTPUT))


def divide_scores(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Divide scores by the temperature."""
    tensors.multiply_rows(tensors.usual(Role.DENSE), 1 / fields.number("temperature", default=1.0))


FAMILY = Family(
    "llama", program, "llama", gguf_tensors=flatten_gguf_experts, gguf_interleaved_rope=True
)
BOTH_WAYS = replace(
    FAMILY, program=both_ways_program, hf_tensors=score_tensors, hf_values=divide_scores
)
