"""lw_fit: equal to its numpy twin to the bit, and to exhaustive search where that can be had."""

import itertools

import numpy as np
import pytest

from lanewise.runtime import NativeError
from lanewise.runtime.fitting import Candidates, Levels, Map, fit
from lanewise_quantizer.fit import oracle
from lanewise_quantizer.fit.group import Metric
from lanewise_quantizer.fit.hessian import factor

pytestmark = pytest.mark.native

TRELLIS = [-54, -5, 62, 19, 127, -40, 8, 54, 3, 54, -33, -79, 30, -104, 88, -21]
LEVELS = {
    "uniform": Levels(Map.UNIFORM, -8, 7),
    "table": Levels(Map.TABLE, tables=np.array([[-127, -40, 29, 113], [-77, -10, 47, 127]], "f4")),
    "trellis": Levels(Map.TRELLIS, tables=np.array([TRELLIS, TRELLIS[::-1]], "f4")),
}


def problem(name, rows, columns, groups, tried, seed=0):
    rng = np.random.default_rng(seed)
    levels = LEVELS[name]
    peak = 8 if levels.tables is None else 127
    scales = rng.uniform(-1, 1, (tried, groups, rows)).astype(np.float32) * 3 / peak
    scales[0, 0, : rows // 4] = 0
    minimums = None
    if name != "trellis":
        minimums = rng.uniform(-1, 1, scales.shape).astype(np.float32)
    selectors = None
    if levels.tables is not None:
        selectors = rng.integers(0, len(levels.tables), (tried, rows)).astype(np.uint8)
    states = rng.integers(0, 4, rows).astype(np.uint8) if name == "trellis" else None
    x = rng.standard_normal((4 * columns, columns)) @ rng.standard_normal((columns, columns))
    unit, weights = factor(x.T @ x / len(x) + np.eye(columns))
    metric = Metric.factored(unit, weights)
    targets = rng.standard_normal((columns, rows)).astype(np.float32)
    return levels, targets, metric, Candidates(scales, minimums, selectors), states


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(("rows", "columns", "groups"), [(1, 16, 1), (203, 32, 1), (70, 128, 4)])
@pytest.mark.parametrize("feeds_back", [True, False])
def test_native_equals_numpy(name, rows, columns, groups, feeds_back):
    levels, targets, metric, tried, states = problem(name, rows, columns, groups, 5)
    feedback = metric.feedback if feeds_back else None
    arguments = (levels, targets, metric.weights, feedback, tried, states)
    got, expected = fit(*arguments), oracle.fit(*arguments)
    for field in ("codes", "values", "losses", "choices"):
        np.testing.assert_array_equal(getattr(got, field), getattr(expected, field), field)
    assert len(np.unique(got.choices)) > 1 or rows == 1


@pytest.mark.parametrize("name", LEVELS)
def test_losses_are_those_of_the_quadratic_form(name):
    """What is summed input by input is e H e^T of the whole error."""
    levels, targets, metric, tried, states = problem(name, 40, 32, 2, 3)
    found = fit(levels, targets, metric.weights, metric.feedback, tried, states)
    rows = np.arange(40)
    scales = np.repeat(tried.scales[found.choices, :, rows].T, 16, axis=0)
    index = found.codes
    if name == "trellis":
        index = index << 2 | np.concatenate([states[None], index[:-1]])
    selectors = None if tried.selectors is None else tried.selectors[found.choices, rows]
    mapped = index - 8.0 if levels.tables is None else levels.tables[selectors, index]
    values = mapped * scales
    if tried.minimums is not None:
        values -= np.repeat(tried.minimums[found.choices, :, rows].T, 16, axis=0)
    np.testing.assert_allclose(found.losses, metric.loss(targets - values), rtol=2e-3)


def test_viterbi_finds_the_best_of_all_paths():
    levels = LEVELS["trellis"]
    rng = np.random.default_rng(3)
    targets = rng.standard_normal((16, 4)).astype(np.float32)
    targets[6:] = 0  # a path of six inputs, then ones that weigh nothing
    weights = np.zeros(16, np.float32)
    weights[:6] = rng.uniform(0.5, 2, 6)
    scales = np.full((1, 1, 4), 0.02, np.float32)
    found = fit(
        levels, targets, weights, None, Candidates(scales, None, np.zeros((1, 4), np.uint8))
    )
    table = levels.tables[0]
    paths = np.array(list(itertools.product(range(4), repeat=6)))
    before = np.concatenate([np.zeros((len(paths), 1), int), paths[:, :-1]], axis=1)
    values = table[paths << 2 | before] * np.float32(0.02)
    for row in range(4):
        losses = (weights[:6] * (targets[:6, row] - values) ** 2).sum(axis=1)
        assert found.losses[row] == pytest.approx(losses.min(), rel=1e-5)
        np.testing.assert_array_equal(found.codes[:6, row], paths[losses.argmin()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"levels": Levels(Map.UNIFORM, 3, 3)}, "levels 3 to 3"),
        ({"levels": Levels(Map.TRELLIS, tables=np.zeros((1, 8), "f4"))}, "16 levels, not 8"),
        ({"levels": Levels(Map.TABLE, tables=np.zeros((1, 17), "f4"))}, "n_levels 17"),
        ({"targets": np.zeros((160, 8), "f4")}, "160 columns"),
        ({"candidates": Candidates(np.zeros((0, 1, 8), "f4"))}, "n_candidates is 0"),
        (
            {"candidates": Candidates(np.ones((1, 1, 8), "f4"), None, np.full((1, 8), 2, "u1"))},
            "selector 2 of row 0",
        ),
        ({"states": np.full(8, 4, "u1")}, "state 4 of row 0"),
    ],
)
def test_bad_jobs_are_refused(change, message):
    arguments = {
        "levels": LEVELS["trellis"],
        "targets": np.zeros((32, 8), np.float32),
        "weights": np.ones(32, np.float32),
        "feedback": None,
        "candidates": Candidates(np.ones((1, 1, 8), np.float32)),
    }
    with pytest.raises(NativeError, match=message):
        fit(**(arguments | change))
