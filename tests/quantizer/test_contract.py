"""The contract's rule gives the real-number product for every kind of format it is to carry."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise_quantizer.contract import fma, product, quantize_activations

N = 640  # two whole segments and a shorter one


def exact_product(weights, scales, codes, activation_scales, minimums=None):
    group = len(weights) // len(scales)
    total = Fraction(0)
    size = Fraction(0)
    for k in range(len(weights)):
        weight = Fraction(float(scales[k // group])) * int(weights[k])
        if minimums is not None:
            weight -= Fraction(float(minimums[k // group]))
        term = weight * int(codes[k]) * Fraction(float(activation_scales[k // 128]))
        total += term
        size += abs(term)
    return total, size


def row(rng):
    return quantize_activations(rng.standard_normal(N).astype(np.float32))


def q4_0(rng):
    return rng.integers(-8, 8, N), 32, None


def q8_0(rng):
    return rng.integers(-128, 128, N), 32, None


def q6_k(rng):
    return rng.integers(-32, 32, N), 16, None


def q4_k_minimums(rng):
    return rng.integers(0, 16, N), 32, "minimum"


def int8_zero_point(rng):
    return rng.integers(-128, 128, N), 64, "zero point"


def cb2_table(rng):
    tables = np.array([[-127, -40, 29, 113], [-77, -10, 47, 127]])
    choice = rng.integers(0, 2, N // 32).repeat(32)
    return tables[choice, rng.integers(0, 4, N)], 32, None


@pytest.mark.parametrize(
    "make", [q4_0, q8_0, q6_k, q4_k_minimums, int8_zero_point, cb2_table], ids=lambda f: f.__name__
)
def test_rule_equals_the_real_product(make):
    rng = np.random.default_rng(7)
    codes, activation_scales = row(rng)
    weights, group, offset = make(rng)
    # neighbouring scales up to four orders of magnitude apart
    scales = (10 ** rng.uniform(-4, 0, N // group)).astype(np.float16).astype(np.float32)
    minimums = None
    if offset == "minimum":
        minimums = (scales * 7).astype(np.float16).astype(np.float32)
    elif offset == "zero point":
        minimums = scales * rng.integers(-128, 128, N // group).astype(np.float32)
    got = product(weights.astype(np.int32), scales, codes, activation_scales, minimums)
    exact, size = exact_product(weights, scales, codes, activation_scales, minimums)
    assert abs(Fraction(float(got)) - exact) <= size * Fraction(1, 2**20)


def test_prefix_sums_stay_below_the_magic_bias_limit():
    for low, high in [(-8 * 16, 7 * 16), (-128, 127), (-32, 31), (0, 15), (-127, 127)]:
        assert 128 * max(-low, high) * 127 < 2**22


floats = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**50), max_value=2.0**50
)


@given(floats, floats, floats)
def test_fma_rounds_once(a, b, c):
    a, b, c = np.float32(a), np.float32(b), np.float32(c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    got = fma(a, b, c)
    for neighbour in (
        np.nextafter(got, np.float32(np.inf)),
        np.nextafter(got, np.float32(-np.inf)),
    ):
        assert abs(Fraction(float(got)) - exact) <= abs(Fraction(float(neighbour)) - exact)


def test_activation_codes():
    x = np.zeros(300, np.float32)
    x[3], x[10], x[128] = 2.0, -4.0, 1e-31
    codes, scales = quantize_activations(x)
    assert scales[0] == np.float32(4) / np.float32(127)
    assert codes[10] == -127
    assert codes[3] == 64  # 63.5 rounds to even
    assert scales[1] == 0
    assert not codes[128:].any()
    x[5] = np.nan
    with pytest.raises(ValueError, match="segment 0"):
        quantize_activations(x)
