"""DeepSeek V2 and its Lite: latent attention, experts chosen by softmax; what GGUF calls deepseek2.

GGUF has one name for V2, V3 and their likes; how experts are chosen tells them apart.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import check_values, has, hf_model
from lanewise.loading.families.experts import (
    EPS,
    GATING,
    flatten_gguf_experts,
    gguf_experts,
    hf_dense_first,
    hf_routed_experts,
    sparse_layers,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_gated,
    gguf_model,
    gguf_trunk_layers,
)
from lanewise.loading.families.latent import (
    gguf_latent_attention,
    gguf_latent_tensors,
    hf_latent_attention,
    hf_latent_tensors,
    unscaled,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Experts, Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

GROUPED, PLAIN = "group_limited_greedy", "greedy"
MUST_BE = {
    "scoring_func": ("softmax",),
    "norm_topk_prob": (False, None),
    "topk_method": (GROUPED, PLAIN),
}
GLM_VOCABULARY = 154880  # of GLM-4.7-Flash, whose first files do not say how experts are chosen


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_values(fields, MUST_BE)
    grouped = fields.text("topk_method", default=PLAIN) == GROUPED
    experts = hf_routed_experts(fields, "softmax", renormalize=False, groups=grouped)
    experts = replace(experts, groups_by_best=experts.groups > 1)
    first = fields.integer("first_k_dense_replace", default=0, least=0)
    layers = hf_dense_first(fields, sources, hf_latent_attention(fields), experts, first)
    return hf_model(fields, "deepseek_v2", layers)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; the last layers may guess further tokens and are not counted."""
    arch, n_layers = arch_of(fields), gguf_trunk_layers(fields, sources)
    attention, gated = gguf_latent_attention(fields), gguf_gated(fields, sources)
    is_sparse = [has(sources, Role.ROUTER, GGUF, number) for number in range(n_layers)]
    if any(is_sparse):
        experts = experts_of(fields, sources)
        layers = sparse_layers(attention, experts, gated, is_sparse)
        name = "deepseek_v3" if experts.router == "sigmoid" else "deepseek_v2"
    else:
        fields.ignore(*(f"{arch}.expert_{end}" for end in UNUSED_OF_DENSE))
        fields.ignore(f"{arch}.leading_dense_block_count")
        layers, name = [Layer(attention, gated)] * n_layers, "youtu"
    config = gguf_model(fields, sources, name, layers)
    return replace(config, ropes=(unscaled(config.ropes[0], fields),))


UNUSED_OF_DENSE = (
    *("feed_forward_length", "shared_count", "count", "used_count", "weights_scale"),
    *("weights_norm", "gating_func", "group_count", "group_used_count"),
)


def experts_of(fields: Fields, sources: Sources) -> Experts:
    """Return the experts of a file, chosen as it says or, of the first ones, by softmax."""
    arch = arch_of(fields)
    embedding = sources.get("token_embd.weight")
    is_glm = embedding is not None and embedding.shape[0] == GLM_VOCABULARY
    gating = fields.integer(f"{arch}.expert_gating_func", default=2 if is_glm else 1, least=0)
    router = GATING.get(gating, "softmax")
    experts = gguf_experts(fields, sources, router, renormalize=False, denominator_eps=EPS)
    by_best = router == "softmax" and experts.groups > 1
    return replace(experts, groups_by_best=by_best)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give matrices of heads and experts their usual shapes."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("blk.", config.n_layers)
    gguf_latent_tensors(tensors, config, GGUF)
    return flatten_gguf_experts(tensors.out, config)


FAMILY = Family(
    "deepseek_v2",
    from_hf,
    "deepseek2",
    from_gguf,
    hf_tensors=hf_latent_tensors,
    gguf_tensors=gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
