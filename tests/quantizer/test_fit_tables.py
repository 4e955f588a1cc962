"""Tables fitted to a model: known optima, constraints, and losses that fall."""

import itertools

import numpy as np
import pytest

from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.fit import tables
from lanewise_quantizer.fit.samples import Sample

pytestmark = pytest.mark.native


def samples_of(books, rng, noise=0.0):
    """Groups whose weights are a codebook's entries times a scale of either sign."""
    out = []
    for layer in range(2):
        chosen = books[rng.integers(0, len(books), 64)]
        codes = rng.integers(0, books.shape[1], (32, 64))
        scales = rng.uniform(0.001, 0.01, 64) * rng.choice([-1, 1], 64)
        w = chosen[np.arange(64), codes] * scales + noise * rng.standard_normal((32, 64)) * 0.005
        out.append(Sample(layer, w.astype(np.float32), np.ones(32, np.float32)))
    return out


def test_codebooks_that_made_the_weights_are_found():
    rng = np.random.default_rng(0)
    books = np.array([[-127, -80, -60, 100], [-127, 0, 60, 90]], np.float32)
    kind = CODED_TYPES["cb2"]
    samples = samples_of(books, rng)
    table = tables.fit_table(kind, samples)
    fitted = tables.total_loss(kind, samples, table.astype(np.float32))
    start = tables.total_loss(kind, samples, tables.default_table(kind).astype(np.float32))
    assert fitted < 0.02 * start


@pytest.mark.parametrize("name", ["cb2", "cb3", "cb4", "t2"])
def test_tables_keep_to_the_constraints_and_lose_less(name):
    kind = CODED_TYPES[name]
    rng = np.random.default_rng(1)
    weights = rng.standard_t(4, (3, 32, 120)).astype(np.float32)
    weights[1] = np.abs(weights[1])
    h = rng.uniform(0.2, 5, (3, 32)).astype(np.float32)
    samples = [Sample(i, weights[i], h[i]) for i in range(3)]
    table = tables.fit_table(kind, samples)
    assert table.dtype == np.int8
    assert table.shape == (16,)
    width = 16 if name == "t2" else 1 << kind.bits
    np.testing.assert_array_equal(np.abs(table.astype(int)).reshape(-1, width).max(axis=1), 127)
    default = tables.default_table(kind).astype(np.float32)
    fitted = tables.total_loss(kind, samples, table.astype(np.float32))
    assert fitted < 0.98 * tables.total_loss(kind, samples, default)


def test_alternating_falls_to_a_fixed_loss():
    kind = CODED_TYPES["t2"]
    rng = np.random.default_rng(2)
    samples = [Sample(0, rng.standard_normal((32, 300)).astype("f4"), np.ones(32, "f4"))]
    start = np.round(rng.uniform(-127, 127, 16)).astype(np.float32)
    _, losses = tables.alternate(kind, samples, start)
    assert losses[-1] < 0.9 * losses[0]
    assert all(after < 1.02 * before for before, after in itertools.pairwise(losses))


def test_choice_of_codebooks_is_the_best_of_all():
    rng = np.random.default_rng(3)
    losses = rng.uniform(0, 1, (8, 30))
    chosen = tables.choose(losses, np.zeros(30, int), 2)
    every = [losses[list(pair)].min(axis=0).sum() for pair in itertools.combinations(range(8), 2)]
    assert losses[chosen].min(axis=0).sum() == pytest.approx(min(every))


def test_a_layer_that_would_lose_too_much_is_given_its_codebook():
    """Without the bound the large layer takes both codebooks."""
    losses = np.ones((3, 110))
    losses[0, :50], losses[1, 50:100], losses[2, 100:] = 0.1, 0.1, 0.1
    layers = np.repeat([0, 1], [100, 10])
    assert sorted(tables._least(losses, 2)[0]) == [0, 1]
    losses[:, 100:] *= 4
    losses[2, 100:] = 0.01
    assert 2 in tables.choose(losses, layers, 2)


def test_line_codebook_of_separate_clusters():
    values = np.concatenate([np.full(10, v) for v in (-1.0, -0.25, 0.5, 0.8)]).astype(np.float32)
    book = tables.line_codebook(values, np.ones(40), 4)
    np.testing.assert_allclose(book, np.array([-1, -0.25, 0.5, 0.8]) * 127, rtol=1e-6)
