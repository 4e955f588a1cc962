"""LFM2 with experts: chosen by sigmoid and a bias, in all layers but the first ones."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families import lfm2
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.experts import (
    first_sparse,
    flatten_gguf_experts,
    gguf_experts,
    hf_name,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import arch_of, gguf_gated, gguf_model, gguf_n_layers
from lanewise.loading.families.states import give, layers_of, own_kinds
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, Gated, ModelConfig
from lanewise.loading.sources import Sources

EPS = round_to_f32(1e-6)  # beside the sum that chosen weights are divided by
EXPERT = ("w1", "w3", "w2")  # gate, up and down of one


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    experts = Experts(
        n=fields.integer("num_experts"),
        n_used=fields.integer("num_experts_per_tok"),
        size=fields.integer("moe_intermediate_size"),
        router="sigmoid",
        choice_bias=fields.flag("use_expert_bias", default=True),
        renormalize=fields.flag("norm_topk_prob", default=True),
        denominator_eps=EPS,
        scale=round_to_f32(fields.number("routed_scaling_factor", default=1.0)),
    )
    gated = Gated(fields.integer("intermediate_size"))
    n_dense = fields.integer("num_dense_layers", default=2, least=0)
    kinds = own_kinds(fields, "layer_types", lfm2.KINDS, n_layers)
    ffns = [gated if number < n_dense else experts for number in range(n_layers)]
    layers = layers_of(lfm2.hf_mixers(fields, sources), kinds, ffns)
    return lfm2.hf_lfm_model(fields, "lfm2_moe", layers)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; stack experts."""
    tensors = lfm2.named(sources, config)
    for layer, experts in layers_of_experts(config):
        folder = f"model.layers.{layer}.feed_forward"
        tensors.rename(f"{folder}.gate.weight", hf_name(Role.ROUTER, layer))
        give(tensors, f"{folder}.expert_bias", Role.ROUTER_CHOICE_BIAS, layer)
        stack_hf_experts(tensors, layer, experts, "feed_forward.experts", EXPERT)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    n_layers = gguf_n_layers(fields, sources)
    experts = gguf_experts(fields, sources, "sigmoid", renormalize=True, denominator_eps=EPS)
    gated, first = gguf_gated(fields, sources), first_sparse(sources)
    fields.ignore(f"{arch_of(fields)}.leading_dense_block_count")  # the tensors say it
    ffns = [gated if number < first else experts for number in range(n_layers)]
    layers = lfm2.gguf_layers(fields, sources, ffns)
    return gguf_model(fields, sources, "lfm2_moe", layers, lfm2.THETA)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names, and make matrices of stacked ones."""
    return flatten_gguf_experts(lfm2.gguf_tensors(sources, config), config)


FAMILY = Family(
    "lfm2_moe",
    from_hf,
    "lfm2moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
