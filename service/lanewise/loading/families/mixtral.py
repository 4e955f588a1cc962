"""Mixtral: Llama with experts; GGUF files of it say that they are Llama."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    check_activation,
    hf_attention,
    hf_model,
    hf_n_layers,
    hf_window,
    with_windows,
)
from lanewise.loading.families.experts import (
    gguf_experts,
    hf_name,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_windows,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

THETA = 1000000.0
FOLDER = "block_sparse_moe"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    experts = Experts(
        n=fields.integer("num_local_experts", default=8),
        n_used=fields.integer("num_experts_per_tok", default=2),
        size=fields.integer("intermediate_size"),
        router="softmax",
        renormalize=True,
    )
    fields.ignore("router_jitter_noise")  # of training
    window = hf_window(fields)
    layer = Layer(hf_attention(fields, sources), experts)
    layers = with_windows(layer, [window] * hf_n_layers(fields, sources))
    return hf_model(fields, "mixtral", layers, theta=THETA)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts, whose gate, up and down are called w1, w3 and w2."""
    tensors = Rearranged(sources)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts, f"{FOLDER}.experts", ("w1", "w3", "w2"))
        stack_hf_experts(tensors, layer, experts)  # as transformers 5 writes them
        tensors.rename(f"model.layers.{layer}.{FOLDER}.gate.weight", hf_name(Role.ROUTER, layer))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read the metadata of a Llama with experts."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=True)
    layer = Layer(gguf_attention(fields, sources), experts)
    windows = gguf_windows(fields, gguf_n_layers(fields, sources))
    return gguf_model(fields, sources, "mixtral", with_windows(layer, windows))


FAMILY = Family("mixtral", from_hf, hf_tensors=hf_tensors, gguf_interleaved_rope=True)
