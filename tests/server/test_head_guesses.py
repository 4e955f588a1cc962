"""Guesses of heads that others made, with the real library: the same bits as without."""

import asyncio

import numpy as np
import pytest

import dflash_heads
from eagle3_heads import head_arrays, write_head
from family_models import write_case
from gemma4_assistants import write_assistant
from lanewise import cli
from lanewise.engine.engine import Engine
from lanewise.engine.guessing import prediction_head
from lanewise.engine.guessing.drafter_chance import DrafterChance
from lanewise.engine.guessing.prompt_lookup import PromptLookup
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.receipts.identity import identity_of
from lanewise.runtime import Session
from lanewise.server import opening
from lanewise.settings import Settings
from state_engines import (
    CONTEXT,
    LIMIT,
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
# Of plain attention, of windows with blocks of their own, and of layers that keep a state.
# Assistants read the keys of layers with and without a window; others read rows behind layers.
DFLASH = {"qwen3 dflash": (0, 1), "gemma3 dflash": (0, 2, 3), "lfm2 dflash": (1, 3)}
FAMILIES = DFLASH | {
    "llama": (1, 2, 2),
    "gemma3": (2, 3, 4),
    "lfm2": (1, 2, 4),
    "gemma4": None,
    "gemma4_small": None,
}


class Nothing(RowCosts):
    """Costs of a head that takes next to no time."""

    def seconds(self, rows: int) -> float:
        return 0.001


@pytest.fixture(autouse=True)
def rows_are_free(monkeypatch):
    """Every step takes as long as any other; only the head guesses, and does not sleep."""
    monkeypatch.setattr(DrafterChance, "is_asleep", False)
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)
    monkeypatch.setattr(prediction_head, "RowCosts", Nothing)
    monkeypatch.setattr(PromptLookup, "find", lambda self, tokens: (0, 0))


@pytest.fixture(scope="module", params=FAMILIES)
def paths(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("m")
    family, _, kind = request.param.partition(" ")
    model = write_case(family, folder / "model", **CONTEXT)
    taps = FAMILIES[request.param]
    if kind:
        arrays = dflash_heads.head_arrays(64, len(taps))
        # Nearly equal logits: then the random numbers, which are the model's, decide.
        arrays["norm.weight"] *= np.float32(0.05)
        head = dflash_heads.write_head(folder / "head", arrays, taps)
    elif taps is None:
        head = write_assistant(request.param, folder / "head")
    else:
        head = write_head(folder / "head", head_arrays(64, 256, 120), taps)
    return str(model), str(head)


@pytest.fixture(scope="module")
def plain(paths):
    return alone(paths[0])


def count(engine: Engine, name: str) -> float:
    return metric(engine, f"vllm:spec_decode_num_{name}_total")


def test_answers_are_those_without_a_head(paths, plain):
    model, head = paths
    with running(model, draft=head) as engine:
        got = asyncio.run(together(engine, asked_for_letters()))
        assert [sampled(one) for one in got] == plain
        assert 10 < count(engine, "accepted_tokens") <= count(engine, "draft_tokens")
        # The next turn goes on behind an answer of which much was guessed, and from the cache.
        turn_two = next_turn(plain[0])
        hits, before = metric(engine, "vllm:prefix_cache_hits_total"), count(engine, "drafts")
        second = asyncio.run(outputs_of(engine, turn_two))
        assert metric(engine, "vllm:prefix_cache_hits_total") > hits
        assert count(engine, "drafts") > before
    with running(model, speculation=False, prefix_cache=False) as engine:
        assert sampled(second) == sampled(asyncio.run(outputs_of(engine, turn_two)))


@pytest.mark.parametrize("paths", ["llama", "lfm2", "qwen3 dflash"], indirect=True)
def test_a_crowd_that_is_preempted_gets_them_too(paths, plain, monkeypatch):
    model, head = paths
    leave_few_blocks(monkeypatch)
    with running(model, draft=head, max_seqs=8, draft_tokens=5) as engine:
        got = asyncio.run(together(engine, asked_for_letters() * 2))
        assert [sampled(one) for one in got] == plain * 2
        assert metric(engine, "vllm:num_preemptions_total") > 0
        assert count(engine, "accepted_tokens") > 10


@pytest.mark.parametrize("paths", ["qwen3 dflash", "lfm2 dflash"], indirect=True)
def test_a_head_that_sleeps_gets_and_guesses_nothing(paths, plain, monkeypatch):
    model, head = paths
    monkeypatch.setattr(DrafterChance, "is_asleep", True)
    skips = []
    step = Session.step_and_draw
    made = lambda self, batch, draws: skips.append(batch.skips_head) or step(self, batch, draws)  # noqa: E731
    monkeypatch.setattr(Session, "step_and_draw", made)
    with running(model, draft=head) as engine:
        got = asyncio.run(together(engine, asked_for_letters()))
        assert [sampled(one) for one in got] == plain
        assert count(engine, "draft_tokens") == 0
    assert not skips[0]  # the prompts' beginning
    assert sum(skips) > 50


def test_a_packed_model_has_it_too(paths, plain, tmp_path):
    model, head = paths
    folder = str(tmp_path / "packed")
    assert cli.main(["pack", model, "-o", folder]) == 0
    with running(folder, draft=head) as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked_for_letters()))] == plain
        assert count(engine, "accepted_tokens") > 10


def test_receipts_name_the_model_without_its_head(paths):
    """Whoever verifies one has the model, and need not have what guessed for it."""
    model, head = paths
    said = []
    for draft in (None, head):
        loaded, _ = opening.open_model(Settings(model=model, draft=draft), 2, LIMIT)
        with loaded:
            assert (loaded.head is None) == (draft is None)
            said.append(identity_of(loaded, "f16", None, None))
    assert said[0] == said[1]
