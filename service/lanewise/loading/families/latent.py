"""Latent attention (MLA): what both kinds of file say of it, and its matrices."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.blocks import LAYOUTS
from lanewise.loading.checkpoint import Role
from lanewise.loading.checks import check_heads
from lanewise.loading.families.common import check_values
from lanewise.loading.families.experts import stack_routed_experts
from lanewise.loading.families.gguf import arch_of, gguf_uniform
from lanewise.loading.families.ministral3 import scaled
from lanewise.loading.families.naming import usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import HF
from lanewise.loading.program import Attention, ModelConfig, Rope
from lanewise.loading.rearranging import Rearranged, Rows
from lanewise.loading.rope import rope_settings, yarn_scale
from lanewise.loading.sources import Sources

logger = logging.getLogger(__name__)

NORM_EPS = round_to_f32(1e-6)  # of norms of latents, whatever the config says of others
MUST_BE = {
    "attention_bias": (False, None),
    "rope_interleave": (True, None),
    "moe_layer_freq": (1,),
}
IGNORED = ("num_key_value_heads", "head_dim", "qk_head_dim")  # of plain attention


def hf_latent_attention(fields: Fields) -> Attention:
    """Return attention as config.json describes it."""
    check_values(fields, MUST_BE)
    fields.ignore(*IGNORED)
    n_heads, rope_dim = fields.integer("num_attention_heads"), fields.integer("qk_rope_head_dim")
    head_dim = fields.integer("qk_nope_head_dim") + rope_dim
    default = fields.integer("hidden_size") // n_heads or 1
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=head_dim,
        rope=0,
        score_scale=score_scale(head_dim, *hf_mscale(fields)),
        latent_rank=fields.integer("kv_lora_rank"),
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", default=default),
        query_rank=fields.integer("q_lora_rank", default=0, least=0),
        latent_eps=NORM_EPS,
    )
    return check_heads(attention, fields.source)


def hf_mscale(fields: Fields) -> tuple[float, float]:
    """Return the factor of RoPE's scaling and its mscale_all_dim, which is 0 without one."""
    settings = rope_settings(fields)
    all_dims = settings.number("mscale_all_dim", default=0.0, zero=True)
    if settings.text("rope_type") == "default" or not all_dims:
        return 1.0, 0.0
    return settings.number("factor"), all_dims


def score_scale(head_dim: int, factor: float, all_dims: float) -> float:
    """Return what scores are multiplied by: YaRN's scale of all dimensions twice; 0: as usual."""
    if not all_dims or factor <= 1.0:
        return 0.0
    return round_to_f32(head_dim**-0.5 * yarn_scale(factor, all_dims) ** 2)


def hf_latent_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give matrices their usual parts and names; leave out layers that guess further tokens."""
    tensors = Rearranged(sources)
    tensors.drop_layers_from("model.layers.", config.n_layers)
    for number, layer in enumerate(config.layers):
        assert layer.attention is not None
        folder = f"model.layers.{number}.self_attn"
        if layer.attention.query_rank:
            tensors.rename(f"{folder}.q_b_proj.weight", usual(Role.ATTN_Q, number))
        split_keys_and_values(tensors, f"{folder}.kv_b_proj.weight", layer.attention, number, HF)
    stack_routed_experts(tensors, config)
    return tensors.out


def split_keys_and_values(
    tensors: Rearranged, name: str, attention: Attention, number: int, column: int
) -> None:
    """Take apart a matrix whose rows are, head by head, those of keys and those of values.

    The keys' part of each head is turned around: queries are multiplied by it.
    """
    still = attention.head_dim - attention.rope_dim
    keys, values = (usual(role, number, column) for role in (Role.LATENT_KEYS, Role.LATENT_VALUES))

    def parts(rows: Rows) -> Mapping[str, Rows]:
        heads = rows.reshape(attention.n_heads, still + attention.value_dim)
        return {keys: heads[:, :still].reshape(-1), values: heads[:, still:].reshape(-1)}

    if name in tensors.out:
        tensors.take_rows(name, attention.n_heads * (still + attention.value_dim), parts)
        tensors.transpose_parts(keys, attention.n_heads)


def gguf_latent_attention(fields: Fields) -> Attention:
    """Return attention as metadata describes it, of files with and without split matrices."""
    arch = arch_of(fields)
    own = f"{arch}.attention."
    fields.ignore(f"{own}head_count_kv", f"{own}key_length", f"{own}value_length")
    heads = [f"{own}{name}_length" for name in ("key", "value")]
    head_dim, value_dim = (
        fields.integer(f"{key}_mla" if fields.is_set(f"{key}_mla") else key) for key in heads
    )
    scaling = f"{arch}.rope.scaling."
    factor = fields.number(f"{scaling}factor", default=1.0, zero=True)
    beta = fields.number(f"{own}temperature_scale", default=0.0, zero=True)
    context = fields.integer(f"{arch}.context_length")
    original = fields.integer(f"{scaling}original_context_length", default=context)
    original = fields.integer(f"{own}temperature_length", default=original)
    attention = Attention(
        n_heads=gguf_uniform(fields, f"{own}head_count"),
        n_kv_heads=1,
        head_dim=head_dim,
        rope=0,
        score_scale=score_scale(head_dim, factor, gguf_mscale(fields)),
        latent_rank=fields.integer(f"{own}kv_lora_rank"),
        rope_dim=fields.integer(f"{arch}.rope.dimension_count"),
        value_dim=value_dim,
        query_rank=fields.integer(f"{own}q_lora_rank", default=0, least=0),
        latent_eps=NORM_EPS,
    )
    return check_heads(scaled(attention, beta, original), fields.source)


def gguf_mscale(fields: Fields) -> float:
    """Return mscale_all_dim, a tenth of which files of this kind have for historical reasons."""
    key = f"{arch_of(fields)}.rope.scaling.yarn_log_multiplier"
    return round(10 * fields.number(key, default=0.0, zero=True), 6)


def unscaled(rope: Rope, fields: Fields) -> Rope:
    """Return angles whose scale is 1 where mscale_all_dim is given: mscale is the same then."""
    return replace(rope, scale=1.0) if gguf_mscale(fields) else rope


def gguf_latent_tensors(tensors: Rearranged, config: ModelConfig, column: int) -> None:
    """Give matrices of heads their usual shapes, and those of queries their usual name."""
    remade = 0
    for number, layer in enumerate(config.layers):
        assert layer.attention is not None
        if layer.attention.query_rank:
            tensors.rename(f"blk.{number}.attn_q_b.weight", usual(Role.ATTN_Q, number, column))
        name = f"blk.{number}.attn_kv_b.weight"
        parts = [usual(role, number, column) for role in (Role.LATENT_KEYS, Role.LATENT_VALUES)]
        if all(part in tensors.out for part in parts):
            tensors.drop(name)  # the same matrices once more
        remade += name in tensors.out and tensors.out[name].type in LAYOUTS
        split_keys_and_values(tensors, name, layer.attention, number, column)
        for part in parts:
            tensors.flatten(part)
    if remade:
        logger.info(
            "%s: keys of %d layers are made again in Q8_0, which attn_kv_b.weight has in one with"
            " values; a file that is converted anew has them as they were quantized",
            *(next(iter(tensors.out.values())).where, remade),
        )
