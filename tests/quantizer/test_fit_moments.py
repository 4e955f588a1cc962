"""Moments of inputs: what each token counts, and the weights that make up for drift."""

import numpy as np
import pytest

from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.fit.moments import APART, MOST, Moments, bounded, moment_of

RNG = np.random.default_rng(31)
MIXED = RNG.normal(size=(24, 24))
X = (RNG.normal(size=(500, 24)) @ MIXED).astype(np.float32)
Y = X + (0.1 * RNG.normal(size=X.shape) + 0.2 * X[:, ::-1]).astype(np.float32)


R = RNG.normal(size=(500, 5)).astype(np.float32)


def found(x, y=None, missing=None, parts=1):
    moments = Moments(x.shape[1], y is not None, 0 if missing is None else missing.shape[1])
    for at in np.array_split(np.arange(len(x)), parts):
        moments.add(x[at], None if y is None else y[at], None if missing is None else missing[at])
    return moments.found()


def test_a_token_counts_once_however_large_its_inputs_are():
    large = X.copy()
    large[7] *= 1000
    np.testing.assert_allclose(found(large).sum, found(X).sum, rtol=1e-4, atol=1e-4)
    assert np.isclose(np.trace(found(X).mean()), 1)


def test_inputs_of_zeros_say_nothing():
    padded = np.concatenate([X, np.zeros((3, 24), np.float32)])
    np.testing.assert_allclose(found(padded).sum, found(X).sum, rtol=1e-5, atol=1e-6)


def test_parts_make_no_difference():
    whole, cut = found(X, Y), found(X, Y, parts=7)
    np.testing.assert_allclose(whole.sum, cut.sum, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(whole.drift, cut.drift, rtol=1e-4, atol=1e-4)
    assert whole.tokens == cut.tokens == 500
    missing = [found(X, Y, R, parts=n).missing for n in (1, 7)]
    np.testing.assert_allclose(*missing, rtol=1e-4, atol=1e-4)


# No whole group of q4_0; t2 has its inputs in another order.
@pytest.mark.parametrize(("name", "cols"), [("q4_0", 24), ("t2", 16)])
@pytest.mark.parametrize("behind", [None, R], ids=["inputs", "states too"])
def test_corrected_weights_are_the_least_of_what_they_are_said_to_minimize(behind, name, cols):
    x, y, w = X[:, :cols], Y[:, :cols], RNG.normal(size=(5, cols)).astype(np.float32)
    r = np.zeros_like(R) if behind is None else behind
    moment = found(x, y, None if behind is None else (y - x) @ w.T + r)
    h = moment.sum.astype(np.float64)
    scaled = 1 / np.square(x, dtype=np.float64).sum(axis=1)

    def loss(q):
        away = np.square(y @ w.T + r - x @ q.T).sum(axis=1) @ scaled
        pulled = (np.square(q - w) * np.diag(h)).sum()
        damped = np.square(q - w).sum() * 0.01 * np.diag(h).mean()
        return (1 - APART) * away + APART * pulled + damped

    best = moment.corrected(w, CODED_TYPES[name], 0.01).astype(np.float64)
    least = loss(best)
    assert least < 0.9 * loss(w)
    for _ in range(50):
        assert loss(best + 1e-2 * RNG.normal(size=w.shape)) > least


def test_without_drift_weights_are_wanted_as_they_are():
    kind = CODED_TYPES["q4_0"]
    w = RNG.normal(size=(5, 24)).astype(np.float32)
    assert moment_of(X).corrected(w, kind) is w
    assert (found(X, X).corrected(w, kind) == w).all()


def test_the_diagonal_keeps_its_size():
    """What is moved to the diagonal is taken from between inputs, not added."""
    kind = CODED_TYPES["q4_0"]
    wide = np.concatenate([X, X[:, :8]], axis=1)
    hessian = moment_of(wide).hessian(kind, 0.0)
    mean = moment_of(wide).mean()
    between = ~np.eye(32, dtype=bool)
    scale = np.diag(mean).mean()
    np.testing.assert_allclose(np.diag(hessian.h), np.diag(mean) / scale, rtol=1e-4)
    expected = (1 - APART) * mean[between] / scale
    np.testing.assert_allclose(hessian.h[between], expected, rtol=1e-3, atol=1e-4)


def test_no_token_asks_for_more_than_the_matrix_adds():
    behind, added = R.copy(), RNG.normal(size=R.shape).astype(np.float32)
    behind[3] *= 1e5
    kept = bounded(behind, added)
    lengths = np.linalg.norm(kept, axis=1)
    assert (lengths <= MOST * np.linalg.norm(added, axis=1) * 1.0001).all()
    small = np.linalg.norm(behind, axis=1) < MOST * np.linalg.norm(added, axis=1)
    assert small.any()
    assert (kept[small] == behind[small]).all()
    direction = kept[3] / np.linalg.norm(kept[3])
    np.testing.assert_allclose(direction, behind[3] / np.linalg.norm(behind[3]), rtol=1e-4)
