"""GLM 4.5 and 4.6: experts chosen by sigmoid and a bias, dense layers first, half-turned heads."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import (
    check_activation,
    has,
    hf_attention,
    hf_gated,
    hf_model,
    hf_n_layers,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    gguf_experts,
    gguf_sparse_layers,
    layers_of_experts,
    rename_shared,
    sparse_layers,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_attention,
    gguf_model,
    gguf_n_layers,
    gguf_post_attention_norm,
)
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Experts, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PARTIAL = 0.5  # of each head is turned, where the config does not say
EPS = round_to_f32(1e-20)  # beside the sum that chosen weights are divided by


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_activation(fields)
    n_layers = hf_n_layers(fields, sources)
    fields.ignore("num_nextn_predict_layers", "num_mtp_layers")
    size = fields.integer("moe_intermediate_size")
    experts = Experts(
        n=fields.integer("n_routed_experts"),
        n_used=fields.integer("num_experts_per_tok"),
        size=size,
        router="sigmoid",
        choice_bias=True,
        groups=fields.integer("n_group", default=1),
        groups_used=fields.integer("topk_group", default=1),
        renormalize=fields.flag("norm_topk_prob", default=True),
        denominator_eps=EPS,
        scale=round_to_f32(fields.number("routed_scaling_factor", default=1.0)),
        shared_size=size * fields.integer("n_shared_experts", default=0, least=0),
    )
    qk_norm = "head" if fields.flag("use_qk_norm", default=False) else "none"
    attention = hf_attention(fields, sources, qk_norm=qk_norm)
    first = fields.integer("first_k_dense_replace", default=1, least=0)
    is_sparse = [number >= first for number in range(n_layers)]
    layers = sparse_layers(attention, experts, hf_gated(fields, sources), is_sparse)
    return hf_model(fields, "glm4_moe", layers, partial=PARTIAL)


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Stack experts; leave out the layers that guess further tokens."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("model.layers.", config.n_layers)
    for layer, experts in layers_of_experts(config):
        stack_hf_experts(tensors, layer, experts)
        rename_shared(tensors, layer, "mlp.shared_experts")
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; the last layers guess further tokens and are not counted."""
    experts = gguf_experts(fields, sources, "sigmoid", renormalize=True, denominator_eps=EPS)
    key = f"{arch_of(fields)}.nextn_predict_layers"
    n_layers = gguf_n_layers(fields, sources)
    further = fields.integer(key, default=0, least=0)
    if further >= n_layers:
        raise fields.fail(key, f"a number below the number of layers, {n_layers},")
    qk_norm = "head" if has(sources, Role.ATTN_Q_NORM, GGUF) else "none"
    attention = gguf_attention(fields, sources, qk_norm=qk_norm)
    layers = gguf_sparse_layers(fields, sources, attention, experts, n_layers - further)
    return gguf_model(fields, sources, "glm4_moe", layers)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Leave out the layers that guess further tokens, and name the second norm."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("blk.", config.n_layers)
    gguf_post_attention_norm(tensors, config)
    return flatten_gguf_experts(tensors.out, config)


FAMILY = Family(
    "glm4_moe",
    from_hf,
    "glm4moe",
    from_gguf,
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    has_mtp=True,
)
