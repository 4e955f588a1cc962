"""What the metadata and tensors of most families' GGUF files have in common, as in Llama's."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.families.common import has, heads_of
from lanewise.loading.families.naming import QKV, bias_of, qkv_rows, usual
from lanewise.loading.formats import TensorType, round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF, TENSOR_NAMES
from lanewise.loading.program import Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.rope import (
    Yarn,
    checked_factors,
    checked_scale,
    extended,
    longrope,
    longrope_scale,
    uniform_factors,
    yarn_factors,
    yarn_scale,
)
from lanewise.loading.sources import Sources

FUSED_BIAS = "blk.0.attn_qkv.bias"  # of Q, K and V
# Tensors of GGUF files that are none of the model's.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)


def arch_of(fields: Fields) -> str:
    """Return what the keys of a model begin with."""
    return fields.text("general.architecture")


def gguf_attention(
    fields: Fields, sources: Sources, qkv_bias: bool = False, qk_norm: str = "none"
) -> Attention:
    """Return attention as GGUF metadata describes it, with the biases that the file has.

    A sliding window is left to :func:`gguf_windows`.
    """
    arch = arch_of(fields)
    n_heads = gguf_uniform(fields, f"{arch}.attention.head_count")
    hidden = fields.integer(f"{arch}.embedding_length")
    head_dim = fields.integer(f"{arch}.attention.key_length", default=hidden // n_heads or 1)
    key = f"{arch}.attention.value_length"
    if fields.integer(key, default=head_dim) != head_dim:
        raise fields.fail(key, f"the head dimension, {head_dim},")
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=gguf_uniform(fields, f"{arch}.attention.head_count_kv", default=n_heads),
        head_dim=head_dim,
        rope=0,
        qkv_bias=qkv_bias or gguf_qkv_bias(sources),
        output_bias=has(sources, Role.ATTN_OUTPUT_BIAS, GGUF),
        qk_norm=qk_norm,
    )
    return check_heads(attention, fields.source)


def gguf_qkv_bias(sources: Sources) -> bool:
    """Return whether Q, K and V have biases, which may be one with theirs."""
    return has(sources, Role.ATTN_Q_BIAS, GGUF) or FUSED_BIAS in sources


def with_heads_apart(sources: Sources, config: ModelConfig) -> Sources:
    """Return tensors with Q, K and V of each layer apart where a file has them in one.

    Rows that are more than those of queries are of their gate.
    """
    tensors = Rearranged(sources)
    for number, layer in enumerate(config.layers):
        for name in (f"blk.{number}.attn_qkv.weight", f"blk.{number}.attn_qkv.bias"):
            fused = sources.get(name)
            if fused is None or layer.attention is None:
                continue
            rows = qkv_rows(layer.attention)
            if fused.shape:
                rows[0] = max(rows[0], fused.shape[0] - sum(rows[1:]))
            roles = QKV if name.endswith("weight") else map(bias_of, QKV)
            names = (usual(role, number, GGUF) for role in roles)
            tensors.split_rows(name, dict(zip(names, rows, strict=True)))
    return tensors.out


def gguf_windows(
    fields: Fields, n_layers: int, period: int = 0, last: bool = True
) -> list[int | None]:
    """Return each layer's sliding window.

    The last of every ``period`` layers, or the first of them, has none, where the file does not say
    which ones have; with 0 all have the window.
    """
    key = f"{arch_of(fields)}.attention.sliding_window"
    window = fields.integer(key, 0, least=0) or None
    pattern = fields.raw(f"{key}_pattern")
    if pattern is None or type(pattern) is int:
        period = period if pattern is None else pattern
        without = period - 1 if last else 0
        pattern = [period == 0 or n % period != without for n in range(n_layers)]
    if not isinstance(pattern, list) or len(pattern) != n_layers:
        raise fields.fail(f"{key}_pattern", f"a number, or {n_layers} times true or false")
    return [window if has_window else None for has_window in pattern]


def gguf_gated(fields: Fields, sources: Sources, layer: int = 0) -> Gated:
    """Return a gated layer as GGUF metadata describes it, with biases if the file has them."""
    arch = arch_of(fields)
    size = gguf_uniform(fields, f"{arch}.feed_forward_length")
    return Gated(size, bias=has(sources, Role.FFN_GATE_BIAS, GGUF, layer))


def gguf_n_layers(fields: Fields, sources: Sources) -> int:
    """Return the number of layers, which no file has more of than tensors."""
    key = f"{arch_of(fields)}.block_count"
    n_layers = fields.integer(key)
    if n_layers > len(sources):
        raise fields.fail(key, f"at most the number of tensors, {len(sources)},")
    return n_layers


def gguf_trunk_layers(fields: Fields, sources: Sources) -> int:
    """Return the number of layers without the last ones, which guess further tokens."""
    key = f"{arch_of(fields)}.nextn_predict_layers"
    n_layers, further = gguf_n_layers(fields, sources), fields.integer(key, default=0, least=0)
    if further >= n_layers:
        raise fields.fail(key, f"a number below the number of layers, {n_layers},")
    return n_layers - further


def gguf_model(
    fields: Fields,
    sources: Sources,
    name: str,
    layers: Sequence[Layer],
    theta: float = 10000.0,
    truncate: bool = True,
    norm: str = "rms",
) -> ModelConfig:
    """Return the whole of a model with one set of angles.

    ``theta`` is what the family has where the file does not say; ``truncate`` whether its YaRN
    rounds the ends of the ramp. Norms have biases if the output's has one.
    """
    arch = arch_of(fields)
    rms, layer = (f"{arch}.attention.layer_norm_{end}" for end in ("rms_epsilon", "epsilon"))
    if norm == "layer":
        fields.ignore(rms)
    embedding = sources.get(TENSOR_NAMES[Role.TOKEN_EMBEDDING][GGUF])
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"{fields.source}: missing tensor 'token_embd.weight' with two dimensions"
        )
    fields.ignore(f"{arch}.vocab_size")  # the embedding has it
    head_dim = heads_of(fields, layers).turning
    rope, context = gguf_rope(fields, sources, head_dim, theta, truncate)
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer(f"{arch}.embedding_length"),
        vocab_size=embedding.shape[0],
        context_length=context,
        rms_norm_eps=round_to_f32(fields.number(layer if norm == "layer" else rms)),
        tied_embeddings=TENSOR_NAMES[Role.OUTPUT][GGUF] not in sources,
        ropes=(rope,),
        layers=tuple(layers),
        norm=norm,
        norm_bias=has(sources, Role.OUTPUT_NORM_BIAS, GGUF),
    )


def gguf_uniform(fields: Fields, key: str, default: int | None = None) -> int:
    """Return a number that some files give once per layer, if all layers have the same."""
    values = fields.raw(key)
    if not isinstance(values, list):
        return fields.integer(key, default)
    if not values or any(value != values[0] for value in values):
        raise fields.fail(key, "the same number for every layer")
    return Fields({key: values[0]}, fields.source).integer(key)


def gguf_rope(
    fields: Fields, sources: Sources, head_dim: int, theta: float, truncate: bool
) -> tuple[Rope, int]:
    """Return the angles that metadata and tensors describe, and the context they make possible."""
    arch = arch_of(fields)
    scaling = f"{arch}.rope.scaling."
    context = fields.integer(f"{arch}.context_length")
    rotated = fields.integer(f"{arch}.rope.dimension_count", default=head_dim)
    if rotated > head_dim or rotated % 2:
        key = f"{arch}.rope.dimension_count"
        raise fields.fail(key, f"an even number up to the head dimension, {head_dim},")
    theta = round_to_f32(fields.number(f"{arch}.rope.freq_base", default=theta))
    original = fields.integer(f"{scaling}original_context_length", default=context)
    fields.ignore(f"{scaling}finetuned")
    factor = fields.number(f"{scaling}factor", default=0.0, zero=True)
    linear = fields.number(f"{arch}.rope.scale_linear", default=1.0)
    attention_factor = fields.number(f"{scaling}attn_factor", default=1.0)
    # A factor without a type means a linear one, in what writes and reads these files.
    kind = fields.text(f"{scaling}type", default="linear" if factor else "none")
    if kind == "yarn":
        if theta <= 1.0:
            raise fields.fail(f"{arch}.rope.freq_base", "a number above 1")
        yarn = _gguf_yarn(fields, scaling, factor or context / original, original, truncate)
        # Some files say what everybody multiplies by; others say nothing, or 1, and mean the same.
        own = fields.number(f"{scaling}yarn_attn_factor", default=1.0)
        scale = attention_factor * (yarn_scale(yarn.factor) if own == 1.0 else own)
        log = fields.number(f"{scaling}yarn_log_multiplier", default=0.0, zero=True)
        scale /= yarn_scale(yarn.factor, log)
        factors = yarn_factors(theta, rotated, yarn)
        found = Rope(theta, rotated, factors, checked_scale(scale, fields.source))
        return found, extended(context, yarn.factor, original)
    if kind not in ("none", "linear", "longrope"):
        raise fields.fail(f"{scaling}type", "none, linear, longrope or yarn")
    if LONG_FACTORS in sources or SHORT_FACTORS in sources:
        names = (LONG_FACTORS, SHORT_FACTORS)
        long, short = (rope_tensor(sources, name, rotated) for name in names)
        scale = attention_factor
        if not fields.is_set(f"{scaling}attn_factor"):
            scale = longrope_scale(context / original, max(original, 2))
        plain = Rope(theta, rotated, scale=checked_scale(scale, fields.source))
        return longrope(plain, long, short, context, original), context
    if attention_factor != 1.0:
        raise fields.fail(f"{scaling}attn_factor", "1, without YaRN or LongRoPE,")
    if kind == "linear":
        linear = factor or linear
    if ROPE_FACTORS not in sources:
        return Rope(theta, rotated, uniform_factors(linear, rotated)), context
    if linear != 1.0:
        raise ModelFileError(
            f"{fields.source}: tensor {ROPE_FACTORS!r} beside linear scaling of {linear}; 1 is"
            " needed"
        )
    return Rope(theta, rotated, rope_tensor(sources, ROPE_FACTORS, rotated)), context


def _gguf_yarn(fields: Fields, scaling: str, factor: float, original: int, truncate: bool) -> Yarn:
    return Yarn(
        factor,
        original,
        fields.number(f"{scaling}yarn_beta_fast", default=Yarn.beta_fast),
        fields.number(f"{scaling}yarn_beta_slow", default=Yarn.beta_slow),
        truncate,
    )


def rope_tensor(sources: Sources, name: str, rotated: int) -> tuple[float, ...] | None:
    """Return the divisors of the RoPE frequencies that a tensor holds."""
    tensor = sources.get(name)
    if tensor is None:
        raise ModelFileError(f"missing tensor {name!r}")
    if tensor.type != TensorType.F32:
        shown = tensor.type.name if isinstance(tensor.type, TensorType) else tensor.type
        raise ModelFileError(f"{tensor.where}: tensor {name!r} has type {shown}; F32 is needed")
    factors = struct.unpack(f"<{prod(tensor.shape)}f", tensor.view())
    return checked_factors(factors, rotated, f"{tensor.where}: {name}")


def gguf_post_attention_norm(tensors: Rearranged, config: ModelConfig) -> None:
    """Give the norm before the FFN its usual name, which some files name by what is before it."""
    for number in range(config.n_layers):
        usual = TENSOR_NAMES[Role.FFN_NORM][GGUF].format(number)
        tensors.rename(f"blk.{number}.post_attention_norm.weight", usual)
