"""Products that are exact in any order: against float64, and in other orders."""

import numpy as np
import pytest

from lanewise.loading.families.exact_products import (
    MOST_INPUTS,
    exact_layernorm,
    exact_product,
)

SCALES = np.array([1e-20, 1e-3, 1.0, 1e12])


def drawn(rows: int, inputs: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, inputs)) * rng.choice(SCALES, (rows, 1))).astype(np.float32)


@pytest.mark.parametrize("inputs", [1, 7, 48, 768, MOST_INPUTS])
def test_products_are_those_of_float64_in_every_order(inputs: int) -> None:
    x, w = drawn(9, inputs, 1), drawn(5, inputs, 2)
    found, wanted = exact_product(x, w), x.astype("f8") @ w.astype("f8").T
    largest = np.linalg.norm(x.astype("f8"), axis=1)[:, None] * np.linalg.norm(w, axis=1)[None]
    assert (np.abs(found - wanted) <= 2e-7 * largest).all()
    order = np.random.default_rng(3).permutation(inputs)
    assert exact_product(x[:, order], w[:, order]).tobytes() == found.tobytes()


def test_rows_of_zeros_and_too_many_inputs() -> None:
    assert not exact_product(np.zeros((2, 5)), drawn(3, 5, 1)).any()
    with pytest.raises(ValueError, match="4097 inputs; accepted: at most 4096"):
        exact_product(np.zeros((1, 4097)), np.zeros((1, 4097)))


@pytest.mark.parametrize("inputs", [2, 42, 1024])
def test_layernorm_is_that_of_float64(inputs: int) -> None:
    x, (weight, bias) = drawn(9, inputs, 4), np.random.default_rng(5).normal(size=(2, inputs))
    centred = x.astype("f8") - x.astype("f8").mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-7) * weight + bias
    assert np.abs(exact_layernorm(x, weight, bias, 1e-7) - wanted).max() < 1e-5
