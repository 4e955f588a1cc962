"""Guesses of models that keep a state, with the real library: the same bits as without."""

import asyncio

import pytest

from family_models import write_case
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.row_costs import RowCosts
from state_engines import (
    CONTEXT,
    alone,
    asked_for_letters,
    leave_few_blocks,
    next_turn,
    running,
    sampled,
    together,
)
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library", "rows_are_free")]

# A convolution, the delta rule and a state space.
FAMILIES = ["lfm2_moe", "qwen3_5", "granitemoehybrid"]


@pytest.fixture
def rows_are_free(monkeypatch):
    """Every step takes as long as any other, so that every guess is worth its row."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)


@pytest.fixture(scope="module", params=FAMILIES)
def path(request, tmp_path_factory):
    return str(write_case(request.param, tmp_path_factory.mktemp("m") / request.param, **CONTEXT))


@pytest.fixture(scope="module")
def draft_path(tmp_path_factory):
    return str(write_case("llama", tmp_path_factory.mktemp("d") / "llama", **CONTEXT))


def came_true(engine: Engine) -> float:
    return metric(engine, "vllm:spec_decode_num_accepted_tokens_total")


@pytest.fixture(scope="module")
def plain(path):
    return alone(path)


def test_answers_are_those_without_guesses(path, plain):
    with running(path) as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert came_true(engine) > 20
        # The next turn goes on behind an answer of which much was guessed.
        turn_two = next_turn(plain[0])
        second = asyncio.run(outputs_of(engine, turn_two))
    with running(path, speculation=False, prefix_cache=False) as engine:
        assert sampled(second) == sampled(asyncio.run(outputs_of(engine, turn_two)))


def test_a_crowd_that_is_preempted_gets_them_too(path, plain, monkeypatch):
    leave_few_blocks(monkeypatch)
    with running(path, max_seqs=8, draft_tokens=5) as engine:
        got = asyncio.run(together(engine, asked_for_letters() * 2))
        assert [sampled(one) for one in got] == plain * 2
        assert metric(engine, "vllm:num_preemptions_total") > 0
        assert came_true(engine) > 20


def test_a_draft_model_without_a_state_guesses_for_one_with(path, plain, draft_path):
    with running(path, draft=draft_path) as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert came_true(engine) > 20
