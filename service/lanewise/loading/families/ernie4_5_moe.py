"""ERNIE 4.5 with experts: a bias that only affects their choice, and shared experts."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import attention_of, check_activation, model_of, n_layers_of
from lanewise.loading.families.ernie4_5 import THETA
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
    mixture_of,
    rename_shared,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

LEAST = 1e-12  # least sum by which chosen weights are divided
MTP = "model.mtp_"  # multi-token prediction tensors


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    file.ignore("use_bias")  # the tensors tell
    n_layers = n_layers_of(file)
    size = 0 if file.is_gguf else file.integer("moe_intermediate_size")
    bias = "model.layers.{}.mlp.moe_statics.e_score_correction_bias"
    experts = experts_of(
        *(file, "softmax", True),
        n="moe_num_experts",
        used="moe_k",
        choice_bias=any(bias.format(number) in file.tensors for number in range(n_layers)),
        denominator_least=round_to_f32(file.number("moe_norm_min", default=LEAST)),
        shared_size=size * file.integer("moe_num_shared_experts", default=0, least=0),
    )
    layers = mixture_of(file, attention_of(file), experts, sparse_layers_in(file, n_layers))
    return model_of(file, "ernie4_5_moe", layers, THETA, tied=True)


def sparse_layers_in(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers have experts: every moe_layer_interval-th of a range."""
    start = file.integer("moe_layer_start_index", default=1, least=0)
    end = file.raw("moe_layer_end_index")
    end = n_layers - 1 if end in (None, -1) else file.integer("moe_layer_end_index", least=0)
    step = file.integer("moe_layer_interval", default=1)
    return [(n + 1) % step == 0 and start <= n <= end for n in range(n_layers)]


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts; drop the multi-token prediction layers."""
    tensors.drop(*(name for name in tensors.out if name.startswith(MTP)))
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
        rename_shared(tensors, layer, "mlp.shared_experts")
        bias = f"model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"
        tensors.flatten(bias, dims=2)
        tensors.rename(bias, tensors.usual(Role.ROUTER_CHOICE_BIAS, layer))


FAMILY = Family(
    "ernie4_5_moe",
    program,
    "ernie4_5-moe",
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
)
