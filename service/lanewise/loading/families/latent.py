"""Latent attention (MLA): its fields in both kinds of file, and its matrices."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from lanewise.loading.base.blocks import LAYOUTS
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, ModelConfig
from lanewise.loading.families.common import check_values
from lanewise.loading.families.experts import stack_routed_experts
from lanewise.loading.families.gguf_rope import SCALING
from lanewise.loading.files.rearranging import Rearranged, Rows
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import rope_settings, yarn_scale

logger = logging.getLogger(__name__)

NORM_EPS = round_to_f32(1e-6)  # of the norms of latents, whatever the config has for others
MUST_BE = {
    "attention_bias": (False, None),
    "rope_interleave": (True, None),
    "moe_layer_freq": (1,),
}
# Fields of plain attention.
IGNORED = ("num_key_value_heads", "head_dim", "qk_head_dim", "{arch}.attention.value_length")


def latent_attention_of(file: ModelFile) -> Attention:
    """Return latent attention; GGUF files may have its matrices fused or split."""
    check_values(file, MUST_BE)
    file.ignore(*IGNORED)
    n_heads, rope_dim = file.integer("num_attention_heads"), file.integer("qk_rope_head_dim")
    shared = file.integer("hidden_size") // n_heads or 1
    if file.is_gguf:
        head_dim = file.integer(_length_key(file, "key"))
        value_dim = file.integer(_length_key(file, "value"), default=shared)
    else:
        head_dim = file.integer("qk_nope_head_dim") + rope_dim
        value_dim = file.integer("v_head_dim", default=shared)
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=1,
        head_dim=head_dim,
        rope=0,
        score_scale=score_scale(head_dim, *mscale_of(file)),
        latent_rank=file.integer("kv_lora_rank"),
        rope_dim=rope_dim,
        value_dim=value_dim,
        query_rank=file.integer("q_lora_rank", default=0, least=0),
        latent_eps=NORM_EPS,
    )
    return check_heads(attention, file.source)


def _length_key(file: ModelFile, part: str) -> str:
    """Return the key of the length of keys or values, which has two names in GGUF."""
    key = f"{{arch}}.attention.{part}_length"
    return f"{key}_mla" if file.is_set(f"{key}_mla") else key


def mscale_of(file: ModelFile) -> tuple[float, float]:
    """Return RoPE's scaling factor, and its mscale_all_dim or 0.

    GGUF files have a tenth of the latter, for historical reasons.
    """
    if file.is_gguf:
        log = file.number(f"{SCALING}yarn_log_multiplier", default=0.0, zero=True)
        return file.number(f"{SCALING}factor", default=1.0, zero=True), round(10 * log, 6)
    settings = rope_settings(file)
    all_dims = settings.number("mscale_all_dim", default=0.0, zero=True)
    if settings.text("rope_type") == "default" or not all_dims:
        return 1.0, 0.0
    return settings.number("factor"), all_dims


def score_scale(head_dim: int, factor: float, all_dims: float) -> float:
    """Return the scale of scores, with the square of YaRN's scale; 0: the usual one."""
    if not all_dims or factor <= 1.0:
        return 0.0
    return round_to_f32(head_dim**-0.5 * yarn_scale(factor, all_dims) ** 2)


def hf_latent_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split and rename matrices; drop the multi-token prediction layers."""
    tensors.drop_layers_from(config.n_layers)
    for number, layer in enumerate(config.layers):
        assert layer.attention is not None
        folder = f"model.layers.{number}.self_attn"
        if layer.attention.query_rank:
            tensors.rename(f"{folder}.q_b_proj.weight", tensors.usual(Role.ATTN_Q, number))
        split_keys_and_values(tensors, f"{folder}.kv_b_proj.weight", layer.attention, number)
    stack_routed_experts(tensors, config)


def split_keys_and_values(
    tensors: Rearranged, name: str, attention: Attention, number: int
) -> None:
    """Split a matrix that has, head by head, rows of keys and rows of values.

    The keys' part of each head is transposed: queries are multiplied by it.
    """
    still = attention.head_dim - attention.rope_dim
    keys, values = (tensors.usual(role, number) for role in (Role.LATENT_KEYS, Role.LATENT_VALUES))

    def parts(rows: Rows) -> Mapping[str, Rows]:
        heads = rows.reshape(attention.n_heads, still + attention.value_dim)
        return {keys: heads[:, :still].reshape(-1), values: heads[:, still:].reshape(-1)}

    if name in tensors.out:
        tensors.take_rows(name, attention.n_heads * (still + attention.value_dim), parts)
        tensors.transpose_parts(keys, attention.n_heads)


def gguf_latent_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape matrices of heads, and rename the queries' matrix."""
    remade = 0
    for number, layer in enumerate(config.layers):
        if layer.attention is None:
            continue
        if layer.attention.query_rank:
            tensors.rename(f"blk.{number}.attn_q_b.weight", tensors.usual(Role.ATTN_Q, number))
        name = f"blk.{number}.attn_kv_b.weight"
        parts = [tensors.usual(role, number) for role in (Role.LATENT_KEYS, Role.LATENT_VALUES)]
        if all(part in tensors.out for part in parts):
            tensors.drop(name)  # a second copy of the same matrices
        remade += name in tensors.out and tensors.out[name].type in LAYOUTS
        split_keys_and_values(tensors, name, layer.attention, number)
        for part in parts:
            tensors.flatten(part)
    if remade:
        logger.info(
            "%s: keys of %d layers are converted to Q8_0, because attn_kv_b.weight has them in one"
            " matrix with values; a newer conversion of the model avoids this",
            *(next(iter(tensors.out.values())).where, remade),
        )
