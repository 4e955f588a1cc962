"""The contract's rule gives the real-number product for every kind of format it is to carry."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coded_matrices import EVERY_TYPE, ODD_COLS, random_matrix, small_float
from lanewise_quantizer.coded import float_parts
from lanewise_quantizer.contract import (
    coded_product,
    fma,
    outlier_product,
    product,
    quantize_activations,
)

N = 640  # two whole segments and a shorter one


def exact_product(weights, scales, codes, activation_scales, minimums=None, group=32):
    """The real-number result, and the sum of the sizes of its terms."""
    total = size = Fraction(0)
    for k in range(len(weights)):
        x = int(codes[k]) * Fraction(float(activation_scales[k // 32]))
        terms = [Fraction(float(scales[k // group])) * int(weights[k]) * x]
        if minimums is not None:
            terms.append(-Fraction(float(minimums[k * len(minimums) // len(weights)])) * x)
        total += sum(terms)
        size += sum(abs(term) for term in terms)
    return total, size


def row(rng, n=N):
    codes, scales, outliers = quantize_activations(rng.standard_normal(n).astype(np.float32))
    assert not outliers.any()
    return codes, scales


def test_rule_with_scales_of_any_size_equals_the_real_product():
    rng = np.random.default_rng(7)
    codes, activation_scales = row(rng)
    for group in (16, 32, 64, 128):
        weights = rng.integers(-127, 128, N).astype(np.int32)
        # neighbouring scales up to four orders of magnitude apart
        scales = (10 ** rng.uniform(-4, 0, -(-N // group))).astype(np.float16).astype(np.float32)
        minimums = (10 ** rng.uniform(-4, 1, N // 32)).astype(np.float16).astype(np.float32)
        parts = (weights, scales, codes, activation_scales, minimums, group)
        exact, size = exact_product(*parts)
        assert abs(Fraction(float(product(*parts))) - exact) <= size * Fraction(1, 2**20)


@pytest.mark.parametrize("kind", EVERY_TYPE, ids=lambda kind: kind.name)
def test_product_of_a_coded_matrix_is_that_of_its_weights(kind):
    rng = np.random.default_rng(kind.id)
    matrix = random_matrix(kind, 3, ODD_COLS, rng)
    codes, activation_scales = row(rng, ODD_COLS)
    found = coded_product(matrix, codes, activation_scales)
    weights = matrix.decode().astype(np.float64)
    # In float64 the sum is exact enough; decoding itself rounds once where a scale has many bits.
    terms = weights * codes * activation_scales.astype(np.float64).repeat(32)[:ODD_COLS]
    minimums = matrix.group_minimums()
    size = np.abs(terms)
    if minimums is not None:
        inputs = np.abs(codes * activation_scales.repeat(32)[:ODD_COLS])
        size += np.abs(minimums.astype(np.float64)).repeat(kind.minimum_group, axis=1) * inputs
    assert found.dtype == np.float32
    assert (np.abs(found - terms.sum(axis=1)) <= size.sum(axis=1) * 2.0**-19).all()
    assert np.abs(found).max() > 0


def test_minimums_are_a_chain_of_their_own_that_is_added_last():
    """Cases in which other orders of additions give other bits."""
    codes = np.zeros(256, np.int32)
    codes[0], codes[32], codes[128] = 1, 1, 1
    scales, activation_scales = np.ones(8, np.float32), np.ones(8, np.float32)
    weights = np.zeros(256, np.int32)
    weights[0], weights[128] = 1, 1
    minimums = np.zeros(8, np.float32)
    minimums[0], minimums[1] = -(2.0**24), 2.0**24
    # 1 + 2^24 rounds to 2^24: taken off the sum of the groups, or a group's, they would leave less
    assert product(weights, scales, codes, activation_scales, minimums) == 2
    minimums[1] = 0
    # groups added to what the minimums make would leave 2^24
    assert product(weights, scales, codes, activation_scales, minimums) == 2.0**24 + 2
    # B is rounded once: 3 * 0.1f is not a float
    codes[0], minimums[:] = 3, 0
    minimums[0] = -1.0
    tenth = np.full(8, 0.1, np.float32)
    assert product(weights * 0, scales, codes, tenth, minimums) == np.float32(0.1) * np.float32(3)


def test_sums_stay_below_the_magic_bias_limit():
    for kind in EVERY_TYPE:
        codes = np.arange(1 << kind.bits)
        mapped = codes - kind.offset if kind.map.name == "OFFSET" else kind.table or [-127, 127]
        if kind.map.name == "FLOAT":
            mapped = np.array([float_parts(code) for code in codes])
            assert [16 * small_float(c) for c in codes] == (mapped @ [4, 1]).tolist()
            assert np.abs(mapped).max() < 128  # bytes
        assert 32 * np.abs(mapped).max() * 127 < 2**22
    assert 32 * 8 * 16 * 127 < 2**22  # nibbles shifted left by four


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
    x[3], x[10], x[32] = 2.0, -4.0, 1e-31
    x[64:66], x[96:98] = (8.0, 1.0), (-9.0, 1.0)
    codes, scales, outliers = quantize_activations(x)
    assert scales[0] == np.float32(4) / np.float32(127)
    assert codes[10] == -127
    assert codes[3] == 64  # 63.5 rounds to even
    assert scales[1] == 0
    assert not codes[32:64].any()
    assert codes[64:66].tolist() == [127, 16]  # eight times the next is not more than that
    assert codes[96:98].tolist() == [0, 127]
    assert scales[3] == np.float32(1) / np.float32(127)
    assert np.flatnonzero(outliers).tolist() == [96]
    assert outliers[96] == -9
    x[5] = np.nan
    with pytest.raises(ValueError, match="inputs from 0 on"):
        quantize_activations(x)


def test_outliers_are_a_chain_in_float32():
    outliers = np.zeros(64, np.float32)
    outliers[[1, 40, 63]] = 2.0**24, 1.0, -(2.0**24)
    weights = np.ones(64, np.float32)
    assert outlier_product(weights, outliers) == 0  # 2^24 + 1 rounds to 2^24
    assert outlier_product(weights, outliers[::-1]) == 1  # the order matters
    outliers[63] = 0
    assert outlier_product(weights * 3, outliers) == 3 * 2**24 + 4  # rounded once
