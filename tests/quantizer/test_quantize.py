"""Quantizing floats: how much of them is left, with and without importance, and what is refused."""

import gguf
import numpy as np
import pytest

from coded_matrices import EVERY_TYPE, ODD_COLS
from lanewise_quantizer.coded import CODED_TYPES, Map, Minimum, Scale, Super
from lanewise_quantizer.quantize import DEFAULT_TABLES, quantize_matrix

TYPES = [kind for kind in EVERY_TYPE if kind.map is not Map.TRELLIS]
every_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
RNG = np.random.default_rng(5)
NORMAL = RNG.standard_normal((64, 512)).astype(np.float32)

# Mean squared error on normal numbers of variance 1: at most this.
LARGEST_ERROR = {
    "q4_0": 0.0070, "q8_0": 3.2e-5, "q6_k": 3.2e-4, "q4_1": 0.0054, "q5_0": 0.00175,
    "q5_1": 0.0013, "q2_k": 0.079, "q3_k": 0.0225, "q4_k": 0.0056, "q5_k": 0.0014,
    "iq4_nl": 0.0057, "iq4_xs": 0.0059, "mxfp4": 0.0132, "cb2": 0.095, "cb3": 0.025,
    "cb4": 0.0057, "q4_g64": 0.0085, "q4_g128": 0.0098, "a4_g32": 0.0067, "a4_g64": 0.0085,
    "a4_g128": 0.0103, "a8_g32": 2.5e-5, "a8_g128": 4.5e-5,
    "fp6": 0.0027, "w8a8": 7e-5,
}  # fmt: skip


def table_of(kind):
    return np.array(DEFAULT_TABLES[kind.name], np.int8) if kind.needs_table else None


def quantized(kind, weights, importance=None):
    return quantize_matrix(weights, kind, table_of(kind), importance).decode()


@every_type
def test_error_on_normal_numbers(kind):
    error = float(((quantized(kind, NORMAL) - NORMAL) ** 2).mean())
    assert LARGEST_ERROR[kind.name] / 2 < error < LARGEST_ERROR[kind.name]


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"])
def test_error_is_below_that_of_the_gguf_package(name):
    kind = CODED_TYPES[name]
    id_ = gguf.GGMLQuantizationType(kind.id)
    public = gguf.quants.dequantize(gguf.quants.quantize(NORMAL, id_), id_)
    assert ((quantized(kind, NORMAL) - NORMAL) ** 2).mean() < ((public - NORMAL) ** 2).mean()


@every_type
def test_importance_lowers_the_error_that_it_weighs(kind):
    if kind.bits == 8:
        return  # every input is as exact as its scale allows
    importance = np.where(np.arange(512) % 8 == 0, 30.0, 0.2).astype(np.float32)
    squares = [(quantized(kind, NORMAL, h) - NORMAL) ** 2 for h in (None, importance)]
    plain, weighed = [float((importance * s).mean()) for s in squares]
    assert weighed < 0.97 * plain


@every_type
def test_widths_that_no_block_divides(kind):
    weights = NORMAL[:, :ODD_COLS]
    whole = ((quantized(kind, weights) - weights) ** 2).mean()
    assert whole < 1.2 * LARGEST_ERROR[kind.name]


@every_type
def test_zeros_stay_zeros(kind):
    weights = NORMAL[:4].copy()
    weights[1] = 0
    weights[2, :256] = 0
    found = quantized(kind, weights)
    assert not found[1].any()
    assert not found[2, :256].any()
    assert not quantized(kind, np.zeros((3, 64), np.float32)).any()


@every_type
def test_outliers_cost_their_own_group_only(kind):
    weights = NORMAL[:8].copy()
    weights[3, 7] = 3000.0
    found = quantized(kind, weights)
    assert abs(found[3, 7] - 3000) < 3000 / 5
    others = np.ones_like(weights, bool)
    # a super scale or a row's scale is shared by more than the group
    wide = {Super.NONE: kind.group, Super.BLOCK: 256, Super.ROW: 512}[kind.super]
    others[3, :wide] = False
    error = ((found - weights)[others] ** 2).mean()
    assert error < 1.1 * LARGEST_ERROR[kind.name]


@every_type
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(kind, value):
    weights = NORMAL.copy()
    weights[40, 300] = value
    with pytest.raises(ValueError, match=r"row 40, column 300 is -?(nan|inf); accepted"):
        quantized(kind, weights)


@every_type
def test_values_beyond_the_range_of_scales(kind):
    weights = NORMAL * np.float32(1e9)
    if kind.scale is Scale.F16 or kind.super is Super.BLOCK:
        with pytest.raises(ValueError, match="accepted: up to 65504, the largest f16"):
            quantized(kind, weights)
    else:
        assert ((quantized(kind, weights) / 1e9 - NORMAL) ** 2).mean() < 0.1


@every_type
@pytest.mark.filterwarnings("error")
def test_tiny_and_huge_numbers_give_no_warning_and_no_nan(kind):
    for size in (1e-42, 1e-38, 1e-30, 1e-7):
        found = quantized(kind, NORMAL[:4] * np.float32(size))
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 10 * size + 1e-7


def test_rows_that_no_group_divides_are_refused():
    with pytest.raises(ValueError, match="q4_0: rows of 40 inputs; accepted: multiples of 32"):
        quantize_matrix(NORMAL[:, :40], CODED_TYPES["q4_0"])


def test_importance_that_cannot_weigh_is_refused():
    for bad in (np.ones(5, np.float32), np.full(512, -1, np.float32), np.full(512, np.nan)):
        with pytest.raises(ValueError, match=r"importance .* needed: \[512\], finite"):
            quantize_matrix(NORMAL, CODED_TYPES["q4_0"], importance=bad)
    zeros = np.zeros(512, np.float32)  # inputs that calibration never saw: all alike
    same = quantize_matrix(NORMAL, CODED_TYPES["q4_0"], importance=zeros).decode()
    assert np.allclose(same, quantized(CODED_TYPES["q4_0"], NORMAL))


def test_table_types_need_a_table():
    with pytest.raises(ValueError, match="cb2: a table of 16 int8 is needed"):
        quantize_matrix(NORMAL, CODED_TYPES["cb2"])


def test_minimums_may_have_either_sign_where_the_type_allows():
    weights = np.abs(NORMAL) + 3
    for name in ("q4_1", "q5_1"):
        assert ((quantized(CODED_TYPES[name], weights) - weights) ** 2).mean() < 0.003
    made = quantize_matrix(weights, CODED_TYPES["q4_1"])
    assert CODED_TYPES["q4_1"].minimum is Minimum.F16
    assert (made.group_minimums() < 0).all()
