"""DeepSeek V2 and Lite: latent attention, softmax experts; GGUF's architecture deepseek2.

GGUF has this one architecture for V2, V3 and derived models; the router tells them apart.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    check_values,
    gated_of,
    model_of,
    trunk_layers_of,
    vocab_size_of,
)
from lanewise.loading.families.experts import (
    GATING,
    flatten_gguf_experts,
    mixture_of,
    routed_experts_of,
    sparse_from,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import (
    gguf_latent_tensors,
    hf_latent_tensors,
    latent_attention_of,
    mscale_of,
)
from lanewise.loading.families.ministral3 import gguf_scaled
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

GROUPED, PLAIN = "group_limited_greedy", "greedy"
MUST_BE = {
    "scoring_func": ("softmax",),
    "norm_topk_prob": (False, None),
    "topk_method": (GROUPED, PLAIN),
}
GLM_VOCABULARY = 154880  # of GLM-4.7-Flash, whose first files name no router
# Keys of experts that a dense model's file may have.
UNUSED_OF_DENSE = (
    *("moe_intermediate_size", "num_experts", "num_experts_per_tok", "routed_scaling_factor"),
    *("norm_topk_prob", "n_group", "topk_group", "{arch}.expert_gating_func"),
    *("{arch}.expert_shared_count", "{arch}.leading_dense_block_count"),
)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return gguf_program(file) if file.is_gguf else hf_program(file)


def hf_program(file: ModelFile) -> ModelConfig:
    """Read config.json, whose model_type distinguishes V2 from V3."""
    check_values(file, MUST_BE)
    grouped = file.text("topk_method", default=PLAIN) == GROUPED
    experts = routed_experts_of(file, "softmax", renormalize=False, groups=grouped)
    experts = replace(experts, groups_by_best=experts.groups > 1)
    first = file.integer("first_k_dense_replace", default=0, least=0)
    layers = mixture_of(file, latent_attention_of(file), experts, sparse_from(file, first))
    return model_of(file, "deepseek_v2", layers)


def gguf_program(file: ModelFile) -> ModelConfig:
    """Read the GGUF metadata of V2, V3, Youtu and Mistral 4."""
    n_layers, attention = trunk_layers_of(file), gguf_scaled(file, latent_attention_of(file))
    if any(file.has(Role.ROUTER, number) for number in range(n_layers)):
        router = gguf_router(file)
        experts = routed_experts_of(file, router, renormalize=False)
        by_best = router == "softmax" and experts.groups > 1
        experts = replace(experts, groups_by_best=by_best)
        layers = mixture_of(file, attention, experts, [True] * n_layers)
        name = "deepseek_v3" if router == "sigmoid" else "deepseek_v2"
    else:
        file.ignore(*UNUSED_OF_DENSE)
        layers, name = [Layer(attention, gated_of(file))] * n_layers, "youtu"
    return gguf_unscaled(file, model_of(file, name, layers))


def gguf_unscaled(file: ModelFile, config: ModelConfig) -> ModelConfig:
    """Return a GGUF file's program without a scale of cosines and sines, if scores have it."""
    if mscale_of(file)[1]:  # mscale is then equal
        config = replace(config, ropes=(replace(config.ropes[0], scale=1.0),))
    return config


def gguf_router(file: ModelFile) -> str:
    """Return a GGUF file's router: the one it names, or softmax in the oldest files."""
    is_glm = vocab_size_of(file) == GLM_VOCABULARY
    gating = file.integer("{arch}.expert_gating_func", default=2 if is_glm else 1, least=0)
    return GATING.get(gating, "softmax")


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape the matrices of heads and experts."""
    tensors.drop_layers_from(config.n_layers)
    gguf_latent_tensors(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "deepseek_v2",
    program,
    "deepseek2",
    hf_tensors=hf_latent_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    has_mtp=True,
)
