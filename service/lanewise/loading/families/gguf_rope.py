"""RoPE and its scaling in GGUF files: metadata keys, and tensors of divisors."""

from __future__ import annotations

import struct
from math import prod

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType, round_to_f32
from lanewise.loading.base.program import Rope
from lanewise.loading.base.sources import Sources
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import (
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

# Tensors of GGUF files that are not weights.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
SCALING = "{arch}.rope.scaling."


def gguf_rope(
    file: ModelFile, head_dim: int, theta: float, truncate: bool = True
) -> tuple[Rope, int]:
    """Return the angles from metadata and tensors, and the context that they allow.

    ``theta`` is the family's default; ``truncate``: its YaRN rounds the ramp's ends.
    """
    context = file.integer("max_position_embeddings")
    key = "{arch}.rope.dimension_count"
    rotated = file.integer(key, default=head_dim)
    if rotated > head_dim or rotated % 2:
        raise file.fail(key, f"an even number up to the head dimension, {head_dim},")
    theta = round_to_f32(file.number("{arch}.rope.freq_base", default=theta))
    original = file.integer(f"{SCALING}original_context_length", default=context)
    file.ignore(f"{SCALING}finetuned")
    factor = file.number(f"{SCALING}factor", default=0.0, zero=True)
    linear = file.number("{arch}.rope.scale_linear", default=1.0)
    attention_factor = file.number(f"{SCALING}attn_factor", default=1.0)
    # Programs that write and read these files take a factor without a type as linear.
    kind = file.text(f"{SCALING}type", default="linear" if factor else "none")
    if kind == "yarn":
        plain = Rope(theta, rotated)
        return _yarn(file, plain, factor or context / original, (context, original), truncate)
    if kind not in ("none", "linear", "longrope"):
        raise file.fail(f"{SCALING}type", "none, linear, longrope or yarn")
    if LONG_FACTORS in file.tensors or SHORT_FACTORS in file.tensors:
        names = (LONG_FACTORS, SHORT_FACTORS)
        long, short = (rope_tensor(file.tensors, name, rotated) for name in names)
        scale = attention_factor
        if not file.is_set(f"{SCALING}attn_factor"):
            scale = longrope_scale(context / original, max(original, 2))
        plain = Rope(theta, rotated, scale=checked_scale(scale, file.source))
        return longrope(plain, long, short, context, original), context
    if attention_factor != 1.0:
        raise file.fail(f"{SCALING}attn_factor", "1, without YaRN or LongRoPE,")
    if kind == "linear":
        linear = factor or linear
    if ROPE_FACTORS not in file.tensors:
        return Rope(theta, rotated, uniform_factors(linear, rotated)), context
    if linear != 1.0:
        raise ModelFileError(
            f"{file.source}: tensor {ROPE_FACTORS!r} beside linear scaling of {linear}; 1 is needed"
        )
    return Rope(theta, rotated, rope_tensor(file.tensors, ROPE_FACTORS, rotated)), context


def _yarn(
    file: ModelFile, plain: Rope, factor: float, contexts: tuple[int, int], truncate: bool
) -> tuple[Rope, int]:
    context, original = contexts
    if plain.theta <= 1.0:
        raise file.fail("{arch}.rope.freq_base", "a number above 1")
    yarn = Yarn(
        factor,
        original,
        file.number(f"{SCALING}yarn_beta_fast", default=Yarn.beta_fast),
        file.number(f"{SCALING}yarn_beta_slow", default=Yarn.beta_slow),
        truncate,
    )
    # Some files have the factor that every reader applies; others have 1 or nothing, and mean it
    # too.
    own = file.number(f"{SCALING}yarn_attn_factor", default=1.0)
    scale = file.number(f"{SCALING}attn_factor", default=1.0)
    scale *= yarn_scale(factor) if own == 1.0 else own
    scale /= yarn_scale(factor, file.number(f"{SCALING}yarn_log_multiplier", 0.0, zero=True))
    factors = yarn_factors(plain.theta, plain.rotated, yarn)
    rope = Rope(plain.theta, plain.rotated, factors, checked_scale(scale, file.source))
    return rope, extended(context, factor, original)


def rope_tensor(sources: Sources, name: str, rotated: int) -> tuple[float, ...] | None:
    """Return the RoPE frequency divisors stored in a tensor."""
    tensor = sources.get(name)
    if tensor is None:
        raise ModelFileError(f"missing tensor {name!r}")
    if tensor.type != TensorType.F32:
        shown = tensor.type.name if isinstance(tensor.type, TensorType) else tensor.type
        raise ModelFileError(f"{tensor.where}: tensor {name!r} has type {shown}; F32 is needed")
    factors = struct.unpack(f"<{prod(tensor.shape)}f", tensor.view())
    return checked_factors(factors, rotated, f"{tensor.where}: {name}")
