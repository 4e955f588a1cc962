"""Mellum 2: Qwen 3's experts, with windows in most layers, whose RoPE is not scaled."""

from __future__ import annotations

from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    check_activation,
    in_use,
    model_of,
    ropes_of_kinds,
    window_of,
    with_kinds,
)
from lanewise.loading.families.experts import (
    count_name,
    experts_of,
    flatten_gguf_experts,
    mixture_by_types,
    stack_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETAS = {"full_attention": 500000.0, "sliding_attention": 10000.0}
# Of layers that guess further tokens.
HARMLESS = (
    *("num_mtp_layers", "num_nextn_predict_layers"),
    *("mtp_layer_types", "mtp_mlp_layer_types"),
)
NO_KEYS = dict.fromkeys(THETAS, "")  # a config has theta only in rope_parameters


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_activation(file)
    renormalize = file.flag("norm_topk_prob", default=True)
    experts = experts_of(file, "softmax", renormalize, n=count_name(file))
    attention = attention_of(file, qk_norm="head")
    layers = with_kinds(file, mixture_by_types(file, attention, experts), window_of(file))
    ropes = ropes_of_kinds(file, attention.head_dim, NO_KEYS, THETAS, scaled=1)
    return model_of(file, "mellum", layers, ropes=in_use(ropes, layers))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack experts; drop the multi-token prediction layer."""
    tensors.drop(*(name for name in tensors.out if name.startswith("mtp.")))
    stack_experts(tensors, config)


FAMILY = Family(
    "mellum",
    program,
    "mellum",
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_gguf_experts,
    harmless=HARMLESS,
)
