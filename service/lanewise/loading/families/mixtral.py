"""Mixtral: Llama with experts; in GGUF files it is llama."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    check_activation,
    model_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.experts import experts_of, layers_of_experts, stack_hf_experts
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETA = 1000000.0
FOLDER = "block_sparse_moe"


def program(file: ModelFile) -> ModelConfig:
    """Read config.json, or the metadata of a llama file with experts."""
    check_activation(file)
    experts = experts_of(file, "softmax", True, n="num_local_experts", size="intermediate_size")
    file.ignore("router_jitter_noise")  # for training
    layers = with_windows(Layer(attention_of(file), experts), windows_of(file, window_of(file)))
    return model_of(file, "mixtral", layers, 10000.0 if file.is_gguf else THETA)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts, whose gate, up and down are named w1, w3 and w2."""
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts, f"{FOLDER}.experts", ("w1", "w3", "w2"))
        stack_hf_experts(tensors, layer, experts)  # as transformers 5 writes them
        tensors.rename(
            f"model.layers.{layer}.{FOLDER}.gate.weight", tensors.usual(Role.ROUTER, layer)
        )


FAMILY = Family("mixtral", program, hf_tensors=hf_tensors, gguf_interleaved_rope=True)
