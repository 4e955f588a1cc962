"""Types chosen within a budget: no other choice loses less."""

import itertools

import numpy as np
import pytest

from lanewise_quantizer.allocate import Option, choose, few_bytes


def options_of(random, matrices, types):
    found = {}
    for matrix in range(matrices):
        sizes = np.sort(random.integers(1000, 100_000, types))
        losses = np.sort(random.random(types))[::-1]
        found[matrix] = [
            Option(f"t{i}", int(size), float(loss))
            for i, (size, loss) in enumerate(zip(sizes, losses, strict=True))
        ]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_the_best_of_all(seed):
    random = np.random.default_rng(seed)
    options = options_of(random, 5, 4)
    least = sum(found[0].n_bytes for found in options.values())
    most = sum(found[-1].n_bytes for found in options.values())
    for budget in np.linspace(least, most, 7).astype(int).tolist():
        chosen = choose(options, budget)
        assert sorted(chosen) == list(options)
        assert sum(option.n_bytes for option in chosen.values()) <= budget
        every = itertools.product(*options.values())
        fitting = [pick for pick in every if sum(o.n_bytes for o in pick) <= budget]
        best = min(sum(o.loss for o in pick) for pick in fitting)
        found = sum(o.loss for o in chosen.values())
        # Sizes are rounded to 1 / 16,384 of the budget: a choice that just fits may be missed.
        tight = [p for p in fitting if sum(o.n_bytes for o in p) <= budget * 0.999]
        assert best <= found + 1e-12
        assert found <= min((sum(o.loss for o in p) for p in tight), default=np.inf) + 1e-12


def test_more_bytes_never_lose_more():
    options = options_of(np.random.default_rng(9), 40, 7)
    least = sum(found[0].n_bytes for found in options.values())
    losses = [
        sum(option.loss for option in choose(options, int(least * part)).values())
        for part in (1.0, 1.2, 1.5, 2.0, 4.0)
    ]
    assert losses == sorted(losses, reverse=True)


def test_a_budget_below_the_smallest_says_what_is_needed():
    options = options_of(np.random.default_rng(1), 3, 2)
    least = sum(found[0].n_bytes for found in options.values())
    with pytest.raises(ValueError, match=f"{least - 1} bytes; {least} are needed at least"):
        choose(options, least - 1)
    assert [option.type for option in choose(options, least).values()] == ["t0"] * 3


@pytest.mark.parametrize("seed", range(5))
def test_few_bytes_are_the_fewest_but_for_one_step(seed):
    options = options_of(np.random.default_rng(seed), 5, 4)
    step = max(found[-1].n_bytes - found[0].n_bytes for found in options.values())
    every = list(itertools.product(*options.values()))
    for most in np.linspace(0.1, 4, 7).tolist():
        chosen = few_bytes(options, most, np.inf).values()
        enough = [pick for pick in every if sum(o.loss for o in pick) <= most]
        if not enough:
            assert sum(o.loss for o in chosen) == min(sum(o.loss for o in pick) for pick in every)
            continue
        assert sum(o.loss for o in chosen) <= most
        fewest = min(sum(o.n_bytes for o in pick) for pick in enough)
        assert fewest <= sum(o.n_bytes for o in chosen) <= fewest + step


def test_few_bytes_stay_within_the_budget():
    options = options_of(np.random.default_rng(3), 40, 7)
    whole = sum(option.n_bytes for option in few_bytes(options, 0.0, np.inf).values())
    found = few_bytes(options, 0.0, whole // 2).values()
    assert 0.4 * whole < sum(option.n_bytes for option in found) <= whole // 2
