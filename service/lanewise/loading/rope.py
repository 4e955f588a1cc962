"""RoPE scaling from a Hugging Face config, as the divisors of the frequencies that GGUF stores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal, localcontext
from typing import Any

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Rope

ACCEPTED = "default, linear, llama3"


def rope_settings(config: Fields) -> Fields:
    """Return the RoPE settings of a config.json, from ``rope_parameters`` or its older spelling.

    Both spellings end up with the keys rope_theta, rope_type and those of the type.
    """
    settings: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.values.get(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise config.fail(key, "an object or null")
        settings |= {name: item for name, item in value.items() if item is not None}
    if config.is_set("rope_theta"):
        settings.setdefault("rope_theta", config.values["rope_theta"])
    settings.setdefault("rope_type", settings.get("type", "default"))
    if config.is_set("partial_rotary_factor"):
        settings.setdefault("partial_rotary_factor", config.values["partial_rotary_factor"])
    return Fields(settings, f"{config.source}: rope_parameters")


def read_rope(config: Fields, head_dim: int) -> Rope:
    """Return the angles that a config.json describes."""
    settings = rope_settings(config)
    theta = settings.number("rope_theta", default=10000.0)
    return Rope(round_to_f32(theta), head_dim, rope_factors(settings, theta, head_dim))


def rope_factors(settings: Fields, rope_theta: float, head_dim: int) -> tuple[float, ...] | None:
    """Return head_dim / 2 divisors of the RoPE frequencies, or None when all are 1."""
    rope_type = settings.text("rope_type")
    if settings.number("partial_rotary_factor", default=1.0) != 1.0:
        raise settings.fail("partial_rotary_factor", "1 (rotation of whole heads)")
    if rope_type == "default":
        return None
    if rope_type == "linear":
        return uniform_factors(settings.number("factor"), head_dim)
    if rope_type == "llama3":
        factor = settings.number("factor")
        low = settings.number("low_freq_factor")
        high = settings.number("high_freq_factor")
        if high <= low:
            raise settings.fail("high_freq_factor", f"a number above low_freq_factor, {low}")
        context = settings.integer("original_max_position_embeddings")
        return simplify(llama3_factors(rope_theta, head_dim, factor, low, high, context))
    raise ModelFileError(
        f"{settings.source}: rope_type {rope_type!r} is not supported; accepted are {ACCEPTED}"
    )


def uniform_factors(factor: float, head_dim: int) -> tuple[float, ...] | None:
    """Return the divisors of linear scaling."""
    return simplify((round_to_f32(factor),) * (head_dim // 2))


def checked_factors(
    factors: tuple[float, ...], head_dim: int, source: str
) -> tuple[float, ...] | None:
    """Return divisors that a file stores, if there are enough and they can divide."""
    if len(factors) != head_dim // 2 or not all(0 < factor < math.inf for factor in factors):
        raise ModelFileError(
            f"{source}: {len(factors)} RoPE factors; {head_dim // 2} positive finite numbers are"
            " needed, half the head dimension"
        )
    return simplify(factors)


def simplify(factors: tuple[float, ...]) -> tuple[float, ...] | None:
    """Return None for divisors that divide by 1."""
    return None if all(factor == 1.0 for factor in factors) else factors


def llama3_factors(
    rope_theta: float, head_dim: int, factor: float, low: float, high: float, context: int
) -> tuple[float, ...]:
    """Return the divisors of Llama 3's scaling.

    Every operation is rounded to float32, in the order in which the public converter to GGUF does
    them, because a GGUF file stores its results and both kinds of file must give the same logits.
    """
    f32 = round_to_f32
    long_wave, short_wave = context / low, context / high
    factors = []
    for frequency in frequencies(rope_theta, head_dim):
        wavelength = f32(f32(1.0 / frequency) * f32(2 * math.pi))
        if wavelength < short_wave:
            factors.append(1.0)
        elif wavelength > long_wave:
            factors.append(f32(factor))
        else:
            periods = f32(f32(1.0 / wavelength) * f32(context))
            smooth = f32(f32(periods - f32(low)) / f32(high - low))
            blend = f32(f32(f32(1.0 - smooth) / f32(factor)) + smooth)
            factors.append(f32(1.0 / blend))
    return tuple(factors)


def frequencies(rope_theta: float, head_dim: int) -> list[float]:
    """Return the float32 frequencies theta^(-2i / head_dim).

    The power is taken in decimal arithmetic, so that it does not depend on the C library.
    """
    with localcontext() as context:
        context.prec = 40
        base = Decimal(round_to_f32(rope_theta))
        powers = [
            round_to_f32(float(base ** Decimal(round_to_f32(2 * i / head_dim))))
            for i in range(head_dim // 2)
        ]
    return [round_to_f32(1.0 / power) for power in powers]
