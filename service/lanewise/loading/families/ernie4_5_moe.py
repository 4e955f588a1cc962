"""ERNIE 4.5 with experts: a bias for their choice alone, and shared ones."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    check_activation,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.ernie4_5 import THETA
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    gguf_sparse_layers,
    hf_name,
    layers_of_experts,
    rename_shared,
    sparse_layers,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    gguf_attention,
    gguf_model,
    gguf_n_layers,
)
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Experts, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

LEAST = round_to_f32(1e-12)  # of the sum that chosen weights are divided by
MTP = "model.mtp_"  # tensors that guess further tokens


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    fields.ignore("use_bias")  # the tensors say it
    n_layers = hf_n_layers(fields, sources)
    size = fields.integer("moe_intermediate_size")
    bias = "model.layers.{}.mlp.moe_statics.e_score_correction_bias"
    experts = Experts(
        n=fields.integer("moe_num_experts"),
        n_used=fields.integer("moe_k"),
        size=size,
        router="softmax",
        choice_bias=any(bias.format(number) in sources for number in range(n_layers)),
        renormalize=True,
        denominator_least=round_to_f32(fields.number("moe_norm_min", default=1e-12)),
        shared_size=size * fields.integer("moe_num_shared_experts", default=0, least=0),
    )
    attention = hf_attention(fields, sources)
    is_sparse = hf_is_sparse(fields, n_layers)
    layers = sparse_layers(attention, experts, hf_gated(fields, sources), is_sparse)
    return hf_model(fields, "ernie4_5_moe", layers, THETA, tied=True)


def hf_is_sparse(fields: Fields, n_layers: int) -> list[bool]:
    """Return which layers have experts: every moe_layer_interval-th of a range."""
    start = fields.integer("moe_layer_start_index", default=1, least=0)
    end = fields.raw("moe_layer_end_index")
    end = n_layers - 1 if end in (None, -1) else fields.integer("moe_layer_end_index", least=0)
    step = fields.integer("moe_layer_interval", default=1)
    return [(n + 1) % step == 0 and start <= n <= end for n in range(n_layers)]


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts; leave out what guesses further tokens."""
    kept = {name: tensor for name, tensor in sources.items() if not name.startswith(MTP)}
    tensors = Rearranged(kept)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
        rename_shared(tensors, layer, "mlp.shared_experts")
        bias = f"model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"
        tensors.flatten(bias, dims=2)
        tensors.rename(bias, hf_name(Role.ROUTER_CHOICE_BIAS, layer))
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    experts = gguf_experts(fields, sources, "softmax", renormalize=True, denominator_least=LEAST)
    attention = gguf_attention(fields, sources)
    n_layers = gguf_n_layers(fields, sources)
    layers = gguf_sparse_layers(fields, sources, attention, experts, n_layers)
    return gguf_model(fields, sources, "ernie4_5_moe", layers, THETA)


FAMILY = Family(
    "ernie4_5_moe",
    from_hf,
    "ernie4_5-moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
)
