"""LFM2 with sigmoid experts with a bias, in all layers but the first ones."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Gated, ModelConfig
from lanewise.loading.families import lfm2
from lanewise.loading.families.common import gated_of, n_layers_of
from lanewise.loading.families.experts import (
    experts_of,
    first_sparse_layer,
    flatten_gguf_experts,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.states import give
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

EPS = round_to_f32(1e-6)  # added to the sum by which chosen weights are divided
EXPERT = ("w1", "w3", "w2")  # an expert's gate, up and down


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    scale = file.number("routed_scaling_factor", default=1.0)
    experts = experts_of(
        *(file, "sigmoid", file.flag("norm_topk_prob", default=True)),
        choice_bias=file.flag("use_expert_bias", default=True),
        denominator_eps=EPS,
        scale=round_to_f32(scale),
    )
    gated = Gated(file.integer("intermediate_size"))
    n_dense = file.integer("num_dense_layers", default=2, least=0)
    if file.is_gguf:
        gated, n_dense = gated_of(file), first_sparse_layer(file)
    ffns = [gated if number < n_dense else experts for number in range(n_layers_of(file))]
    return lfm2.lfm_of(file, "lfm2_moe", ffns, None)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors and stack experts."""
    lfm2.named(tensors, config)
    for layer, experts in layers_of_experts(config):
        folder = f"model.layers.{layer}.feed_forward"
        tensors.rename(f"{folder}.gate.weight", tensors.usual(Role.ROUTER, layer))
        give(tensors, f"{folder}.expert_bias", Role.ROUTER_CHOICE_BIAS, layer)
        stack_hf_experts(tensors, layer, experts, "feed_forward.experts", EXPERT)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, and make matrices of stacked experts."""
    lfm2.gguf_tensors(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "lfm2_moe",
    program,
    "lfm2moe",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
