"""Error feedback: what it stores decodes to what it computed, and loses less than rounding."""

import numpy as np
import pytest

from lanewise_quantizer import coded
from lanewise_quantizer.coded import CODED_TYPES, Map, Minimum, Scale, Super
from lanewise_quantizer.fit import oracle
from lanewise_quantizer.fit.feedback import (
    quantize_by_importance,
    quantize_with_feedback,
    rounds_for,
)
from lanewise_quantizer.fit.hessian import BLOCK, Hessian, factor
from lanewise_quantizer.fit.tables import default_table
from lanewise_quantizer.quantize import quantize_matrix

pytestmark = pytest.mark.native

ROWS, COLS = 48, 256
GROUPED = [kind.name for kind in CODED_TYPES.values() if kind.scale is not Scale.ONE]


def table_of(kind):
    return default_table(kind) if kind.needs_table else None


def layer(seed=0, rows=ROWS, cols=COLS):
    """Weights, and the moment of inputs that hang together as those of real layers do."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((cols, cols)) * np.exp(rng.standard_normal(cols) / 2) / 8
    x = (rng.standard_normal((4 * cols, cols)) @ mixing + rng.standard_normal(cols)).astype("f4")
    weights = rng.standard_t(5, (rows, cols)).astype(np.float32) / 16
    return weights, x.T @ x / np.float32(len(x))


def loss(weights, matrix, h):
    errors = (weights - matrix.decode()).astype(np.float64)
    return float(np.einsum("ri,ij,rj->", errors, h.astype(np.float64), errors))


def same(a, b):
    names = ("codes", "scales", "minimums", "selectors", "super_scales", "super_minimums")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    return all(np.array_equal(x, y) for x, y in pairs if x is not None)


@pytest.mark.parametrize("cols", [COLS, 2 * BLOCK + 64])
def test_factor_is_the_matrix(cols):
    _, h = layer(cols=cols)
    unit, weights = factor(h.astype(np.float64) + 0.01 * np.eye(cols))
    np.testing.assert_array_equal(unit, np.triu(unit))
    np.testing.assert_allclose(np.diag(unit), 1)
    np.testing.assert_allclose(unit * weights @ unit.T, h + 0.01 * np.eye(cols), atol=2e-3)


def test_what_is_divided_by_the_matrix_gives_itself_times_it():
    cols = 2 * BLOCK + 64
    rows, h = layer(rows=9, cols=cols)
    hessian = Hessian.of(h, CODED_TYPES["q4_0"])
    exact = np.linalg.solve(hessian.h.astype(np.float64), rows.T).T
    found = hessian.divide(rows)
    assert np.abs(found - exact).max() < 1e-3 * np.abs(exact).max()


@pytest.mark.parametrize("name", GROUPED)
def test_feedback_beats_rounding_for_every_type(name):
    kind = CODED_TYPES[name]
    weights, h = layer()
    hessian = Hessian.of(h, kind)
    table = table_of(kind)
    importance = np.diag(h).copy()
    rounded = quantize_by_importance(weights, kind, importance, table)
    rounds = [quantize_with_feedback(weights, kind, hessian, table, n) for n in (0, 1, 2)]
    losses = [loss(weights, matrix, h) for matrix in (rounded, *rounds)]
    if kind.group <= 32:  # in larger ones the first pass alone may clip what it feeds back
        assert losses[1] < losses[0]
    assert losses[2] < losses[1]
    assert losses[3] < min(losses[2], 0.85 * losses[0])
    if kind.map is not Map.TRELLIS:  # the search without feedback is as good as the plain one
        plain = loss(weights, quantize_matrix(weights, kind, table, importance), h)
        assert losses[0] < 1.25 * plain


@pytest.mark.parametrize("name", GROUPED)
def test_stored_rows_decode_to_the_same_weights(name):
    kind = CODED_TYPES[name]
    weights, h = layer(1, 16, 160)  # no whole group of 64 or 128, no whole block of 256
    hessian = Hessian.of(h, kind)
    matrix = quantize_with_feedback(weights, kind, hessian, table_of(kind), 1)
    assert matrix.decode().shape == (16, 160)
    again = coded.CodedMatrix.from_rows(kind, matrix.to_rows(), 160, matrix.table)
    np.testing.assert_array_equal(again.decode(), matrix.decode())


@pytest.mark.parametrize("name", ["t2", "cb2", "q4_k", "q2_k", "a4_g64", "mxfp4", "q6_k"])
def test_numpy_gives_the_same_matrix(name):
    kind = CODED_TYPES[name]
    weights, h = layer(2, 12, 256)
    hessian = Hessian.of(h, kind)
    native = quantize_with_feedback(weights, kind, hessian, table_of(kind), 1)
    numpy = quantize_with_feedback(weights, kind, hessian, table_of(kind), 1, oracle.fit)
    assert same(native, numpy)


def test_the_same_input_gives_the_same_bytes():
    kind = CODED_TYPES["cb2"]
    weights, h = layer(3, 200)
    hessian = Hessian.of(h, kind)
    found = [
        quantize_with_feedback(weights, kind, hessian, default_table(kind), 1) for _ in range(2)
    ]
    np.testing.assert_array_equal(found[0].to_rows(), found[1].to_rows())


def test_weights_that_a_type_holds_exactly_come_back():
    kind = CODED_TYPES["q4_0"]
    rng = np.random.default_rng(4)
    codes = rng.integers(-8, 8, (24, 128))
    codes[:, ::32] = -8
    weights = (codes * np.repeat(2.0 ** rng.integers(-6, 0, (24, 4)), 32, axis=1)).astype("f4")
    _, h = layer(5, 1, 128)
    matrix = quantize_with_feedback(weights, kind, Hessian.of(h, kind), None, 1)
    np.testing.assert_array_equal(matrix.decode(), weights)


@pytest.mark.parametrize("name", ["t2", "cb3", "q4_k", "mxfp4", "a8_g32"])
def test_zeros_and_outliers(name):
    kind = CODED_TYPES[name]
    weights, h = layer(6, 16, 256)
    weights[:4] = 0
    weights[4:8, 7] = 1e4
    weights[8:10, :32] = 0
    matrix = quantize_with_feedback(weights, kind, Hessian.of(h, kind), table_of(kind), 1)
    decoded = matrix.decode()
    assert np.isfinite(decoded).all()
    np.testing.assert_array_equal(decoded[:4], 0)
    assert np.abs(decoded[4:8, 7] / 1e4 - 1).max() < 0.35


def test_inputs_that_never_vary_are_no_obstacle():
    """A moment of rank one, and one of nothing at all: damping carries the factorization."""
    kind = CODED_TYPES["cb2"]
    weights, _ = layer(7, 16, 64)
    for h in (np.ones((64, 64), np.float32), np.zeros((64, 64), np.float32)):
        matrix = quantize_with_feedback(weights, kind, Hessian.of(h, kind), default_table(kind), 1)
        error = np.square(weights - matrix.decode()).mean() / np.square(weights).mean()
        assert error < (0.5 if h.any() else 0.2)


def test_scales_keep_to_what_types_store():
    weights, h = layer(8)
    for kind in (CODED_TYPES[name] for name in GROUPED):
        matrix = quantize_with_feedback(weights, kind, Hessian.of(h, kind), table_of(kind), 0)
        if kind.super is Super.BLOCK and kind.minimum is Minimum.U8:
            assert matrix.scales.min() >= 0
            assert max(matrix.scales.max(), matrix.minimums.max()) <= 63
        elif kind.super is Super.ROW:
            assert matrix.scales.min() >= -127
        elif kind.name in ("q3_k", "iq4_xs"):
            assert matrix.scales.min() >= -32
            assert matrix.scales.max() <= 31


@pytest.mark.parametrize("name", ["fp6", "w8a8"])
def test_rows_with_one_scale_are_refused(name):
    kind = CODED_TYPES[name]
    weights, h = layer()
    with pytest.raises(ValueError, match=f"{name}: no groups whose scales to fit"):
        quantize_with_feedback(weights, kind, Hessian.of(h, kind), None)


def test_a_round_gains_and_more_rounds_gain_more_but_large_models_have_one():
    weights, h = layer()
    hessian = Hessian.of(h, CODED_TYPES["cb2"], 0.05)
    table = table_of(CODED_TYPES["cb2"])
    most, fewest = rounds_for(7_000_000), rounds_for(1_200_000_000)
    losses = [
        loss(weights, quantize_with_feedback(weights, CODED_TYPES["cb2"], hessian, table, n), h)
        for n in (0, fewest, most)
    ]
    assert losses == sorted(losses, reverse=True)
    assert 0 < fewest < most
