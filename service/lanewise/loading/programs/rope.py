"""RoPE and its scaling from a Hugging Face config, as divisors of the frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Rope
from lanewise.loading.programs.harmless import refuse_unknown_settings

ACCEPTED = "default, dynamic, linear, llama3, longrope, proportional, yarn"
LONGROPE = ("longrope", "su")
MAX_CONTEXT = 2**31 - 1
STILL = 1e30  # divisor that makes an angle 0, as in GGUF files


@dataclass(frozen=True)
class Yarn:
    """The settings of YaRN's scaling."""

    factor: float
    context: int  # context of the first training
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # the ends of the ramp are rounded to integers


def rope_settings(config: Fields) -> Fields:
    """Return the RoPE settings of a config.json, from ``rope_parameters`` or its older form.

    Both forms end up with the keys rope_theta, rope_type and those of the type. Without either the
    reference's defaults apply.
    """
    settings: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.raw(key)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise config.fail(key, "an object or null")
        settings |= {name: item for name, item in value.items() if item is not None}
    if not settings:
        settings = dict(config.meanings.get("rope_parameters") or {})
    for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if config.is_set(key):
            settings.setdefault(key, config.raw(key))
    settings.setdefault("rope_type", settings.get("type", "default"))
    return Fields(settings, f"{config.source}: rope_parameters")


def read_rope(
    config: Fields,
    head_dim: int,
    theta: float = 10000.0,
    partial: float = 1.0,
    own: Sequence[str] = (),
) -> tuple[Rope, int]:
    """Return the angles that a config.json describes, and the context that they allow.

    ``theta`` and ``partial`` are the family's defaults; ``own`` names settings that the family
    reads itself.
    """
    settings = rope_settings(config)
    theta = settings.number("rope_theta", default=theta)
    share = settings.number("partial_rotary_factor", default=partial)
    kind = settings.text("rope_type")
    rotated = head_dim if kind == "proportional" else int(head_dim * share)
    if not 2 <= rotated <= head_dim or rotated % 2:
        raise settings.fail(
            "partial_rotary_factor", f"a share of {head_dim} that is an even number"
        )
    context = config.integer("max_position_embeddings")
    plain = Rope(round_to_f32(theta), rotated)
    if kind == "dynamic":  # it changes only texts beyond the context
        settings.ignore("factor")
    if kind in ("default", "dynamic"):
        found = plain, context
    elif kind == "linear":
        factor = settings.number("factor")
        found = Rope(plain.theta, rotated, uniform_factors(factor, rotated)), context
    elif kind == "llama3":
        found = Rope(plain.theta, rotated, read_llama3(settings, theta, rotated)), context
    elif kind == "yarn":
        found = read_yarn(settings, plain, context)
    elif kind == "proportional":
        turned = int(head_dim * share // 2)
        found = replace(plain, factors=proportional_factors(turned, head_dim // 2)), context
    elif kind in LONGROPE:
        found = read_longrope(settings, plain, context), context
    else:
        raise ModelFileError(
            f"{settings.source}: rope_type {kind!r} is not supported; accepted are {ACCEPTED}"
        )
    settings.ignore("type", *own)
    refuse_unknown_settings(settings, LONGROPE[0] if kind in LONGROPE else kind)
    return found


def read_llama3(settings: Fields, theta: float, rotated: int) -> tuple[float, ...] | None:
    """Return the divisors of Llama 3's scaling."""
    factor = settings.number("factor")
    low = settings.number("low_freq_factor")
    high = settings.number("high_freq_factor")
    if high < low:
        raise settings.fail("high_freq_factor", f"a number from low_freq_factor on, {low}")
    context = settings.integer("original_max_position_embeddings")
    return simplify(llama3_factors(theta, rotated, factor, low, high, context))


def read_yarn(settings: Fields, plain: Rope, context: int) -> tuple[Rope, int]:
    """Return YaRN's angles; the config's context may be the original or the extended one."""
    original = settings.integer("original_max_position_embeddings", default=context)
    factor = settings.number("factor", default=context / original)
    yarn = Yarn(
        factor,
        original,
        settings.number("beta_fast", default=Yarn.beta_fast),
        settings.number("beta_slow", default=Yarn.beta_slow),
        settings.flag("truncate", default=True),
    )
    if plain.theta <= 1.0:
        raise settings.fail("rope_theta", "a number above 1")
    scale = settings.number("attention_factor", default=0.0)
    mscale = settings.number("mscale", default=0.0, zero=True)
    all_dims = settings.number("mscale_all_dim", default=0.0, zero=True)
    if not scale and mscale and all_dims:
        scale = yarn_scale(factor, mscale) / yarn_scale(factor, all_dims)
    factors = yarn_factors(plain.theta, plain.rotated, yarn)
    scale = checked_scale(scale or yarn_scale(factor), settings.source)
    return Rope(plain.theta, plain.rotated, factors, scale), extended(context, factor, original)


def extended(context: int, factor: float, original: int) -> int:
    """Return the context extended by ``factor``, if that is more than the config says."""
    return max(context, int(min(factor * original, MAX_CONTEXT)))


def checked_scale(scale: float, source: str) -> float:
    """Return the factor of cosines and sines if it is usable; else ModelFileError."""
    if not 1e-6 <= scale <= 1e6:
        raise ModelFileError(f"{source}: cosines and sines times {scale}; 1e-6 to 1e6 is accepted")
    return round_to_f32(scale)


def yarn_scale(factor: float, mscale: float = 1.0) -> float:
    """Return YaRN's factor for cosines and sines."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * math.log(factor) + 1.0


def yarn_factors(theta: float, rotated: int, yarn: Yarn) -> tuple[float, ...] | None:
    """Return YaRN's divisors: 1 for the fastest angles, its factor for the slowest."""

    def dimension(rotations: float) -> float:
        periods = yarn.context / (rotations * 2 * math.pi)
        return rotated * math.log(periods) / (2 * math.log(theta))

    low, high = dimension(yarn.beta_fast), dimension(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    if low == high:
        high += 0.001
    factors = []
    for i in range(rotated // 2):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        factors.append(round_to_f32(1.0 / ((1.0 - ramp) + ramp / yarn.factor)))
    return simplify(tuple(factors))


def read_longrope(settings: Fields, plain: Rope, context: int) -> Rope:
    """Return LongRoPE's angles for the context, with the short divisors if it was extended."""
    original = settings.integer("original_max_position_embeddings", default=context, least=2)
    factor = settings.number("factor", default=context / original)
    both = {name: settings.raw(name) for name in ("long_factor", "short_factor")}
    for name, values in both.items():
        if not isinstance(values, list) or not all(type(v) in (int, float) for v in values):
            raise settings.fail(name, "a list of numbers")
    long, short = (_numbers(values, plain.rotated, settings.source) for values in both.values())
    scale = settings.number("attention_factor", default=longrope_scale(factor, original))
    scale = checked_scale(scale, settings.source)
    return longrope(Rope(plain.theta, plain.rotated, scale=scale), long, short, context, original)


def _numbers(values: list[float], rotated: int, source: str) -> tuple[float, ...] | None:
    items = Fields({str(i): item for i, item in enumerate(values)}, source)
    factors = tuple(round_to_f32(items.number(key)) for key in items.values)
    return checked_factors(factors, rotated, source)


def longrope(
    plain: Rope,
    long: tuple[float, ...] | None,
    short: tuple[float, ...] | None,
    context: int,
    original: int,
) -> Rope:
    """Return the angles of a model of ``context`` that was first trained with ``original``.

    The long divisors are meant for texts beyond the original context, the short ones for others.
    The longest text that will be served decides once for all texts, because cached keys must have
    turned like later ones.
    """
    if context <= original:
        return replace(plain, factors=short)
    return replace(plain, factors=long, short_factors=short, short_context=original)


def longrope_scale(factor: float, original: int) -> float:
    """Return LongRoPE's factor for cosines and sines."""
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))


def uniform_factors(factor: float, rotated: int) -> tuple[float, ...] | None:
    """Return the divisors of linear scaling."""
    return simplify((round_to_f32(factor),) * (rotated // 2))


def proportional_factors(turned: int, n: int) -> tuple[float, ...] | None:
    """Return divisors that turn only the first angles; the others stay 0 at every position."""
    return simplify((1.0,) * turned + (round_to_f32(STILL),) * (n - turned))


def checked_factors(
    factors: tuple[float, ...], rotated: int, source: str
) -> tuple[float, ...] | None:
    """Return divisors stored in a file, if their number and values are valid."""
    if len(factors) != rotated // 2 or not all(0 < factor < math.inf for factor in factors):
        raise ModelFileError(
            f"{source}: {len(factors)} RoPE factors; {rotated // 2} positive finite numbers are"
            " needed, half the head dimension"
        )
    return simplify(factors)


def simplify(factors: tuple[float, ...]) -> tuple[float, ...] | None:
    """Return None for divisors that are all 1."""
    return None if all(factor == 1.0 for factor in factors) else factors


def llama3_factors(
    rope_theta: float, head_dim: int, factor: float, low: float, high: float, context: int
) -> tuple[float, ...]:
    """Return the divisors of Llama 3's scaling.

    Every operation is rounded to float32, in the order of the public converter to GGUF: a GGUF file
    stores its results, and both kinds of file must give the same logits.
    """
    f32 = round_to_f32
    long_wave, short_wave = context / low, context / high
    factors = []
    for frequency in frequencies(rope_theta, head_dim):
        wavelength = f32(f32(1.0 / frequency) * f32(2 * math.pi))
        if wavelength < short_wave:
            factors.append(1.0)
        elif wavelength > long_wave or low == high:
            factors.append(f32(factor))
        else:
            periods = f32(f32(1.0 / wavelength) * f32(context))
            smooth = f32(f32(periods - f32(low)) / f32(high - low))
            blend = f32(f32(f32(1.0 - smooth) / f32(factor)) + smooth)
            factors.append(f32(1.0 / blend))
    return tuple(factors)


def frequencies(rope_theta: float, rotated: int) -> list[float]:
    """Return the float32 frequencies theta^(-2i / rotated).

    The power is computed in decimal arithmetic, to be independent of the C library.
    """
    with localcontext() as context:
        context.prec = 40
        base = Decimal(round_to_f32(rope_theta))
        powers = [
            round_to_f32(float(base ** Decimal(round_to_f32(2 * i / rotated))))
            for i in range(rotated // 2)
        ]
    return [round_to_f32(1.0 / power) for power in powers]
