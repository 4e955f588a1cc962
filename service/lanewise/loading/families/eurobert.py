"""EuroBERT: Llama's layers, whose tokens see the whole text."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.program import Dense, Layer, ModelConfig, Pooling
from lanewise.loading.families.common import attention_of, curve, gated_of, model_of, n_layers_of
from lanewise.loading.families.encoders import CLASSIFIER, classifier, encoder_family, give_heads
from lanewise.loading.families.encoders_gguf import gguf_pooling
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

HEADS = ("dense", CLASSIFIER)
CLASSIFY_BY = {"late": "late", "mean": "mean", "bos": "cls"}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file.ignore("{arch}.attention.causal")
    ffn = replace(gated_of(file), activation=curve(file, "hidden_act", "silu"))
    layer = Layer(replace(attention_of(file), both_ways=True), ffn)
    model = model_of(file, "eurobert", [layer] * n_layers_of(file))
    pooling = gguf_pooling(file) if file.is_gguf else read_pooling(file)
    return replace(model, pooling=pooling, tied_embeddings=True)


def read_pooling(file: ModelFile) -> Pooling:
    """Return the mean, or the heads of a classifier."""
    kind = file.text("classifier_pooling", default="late")
    if f"{CLASSIFIER}.weight" not in file.tensors:
        return Pooling()
    if kind not in CLASSIFY_BY:
        raise file.fail("classifier_pooling", " or ".join(map(repr, CLASSIFY_BY)))
    head = Dense(file.integer("hidden_size"), True, "gelu")
    return Pooling(CLASSIFY_BY[kind], dense=(head, classifier(file.tensors)))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the heads of a classifier; the head that guesses masked words is unused."""
    give_heads(tensors, config, HEADS)
    unused = [name for name in tensors.out if name.startswith("lm_head.")]
    tensors.drop(*unused)


FAMILY = encoder_family("eurobert", program, hf_tensors, "eurobert")
