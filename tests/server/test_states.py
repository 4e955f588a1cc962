"""Engines of models that keep a state, as `lanewise serve` makes them."""

import asyncio
import logging
from dataclasses import replace

import pytest

from family_models import write_case
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.host import MIB, HostError
from lanewise.server import opening
from lanewise.server.draft import open_draft
from lanewise.server.make_engine import plan_cache
from lanewise.settings import Settings, SettingsError
from state_engines import (
    CONTEXT,
    LIMIT,
    SYSTEM,
    running,
    sampled,
    together,
)
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next", "bailing_hybrid"])
def path(request, tmp_path_factory):
    return str(write_case(request.param, tmp_path_factory.mktemp("m") / request.param, **CONTEXT))


def asked() -> list[GenerationRequest]:
    """Prompts with a common beginning, one twice, and a next turn of another."""
    params = SamplingParams(seed=3, max_tokens=40, logprobs=2)
    questions = [
        b"one?",
        b"another one, longer than a block of thirty-two tokens is?",
        b"one?",
        b"!",
    ]
    first = [GenerationRequest([*SYSTEM, *question], params) for question in questions]
    return [*first, GenerationRequest(list(b"short"), replace(params, max_tokens=70))]


def test_answers_are_the_same_bits_with_and_without_snapshots(path):
    requests = asked()
    with running(path, prefix_cache=False) as engine:
        wanted = [sampled(asyncio.run(outputs_of(engine, one))) for one in requests]
        assert metric(engine, "lanewise_state_snapshots_taken_total") == 0
    with running(path) as engine:
        got = [sampled(one) for one in asyncio.run(together(engine, requests))]
        assert got == wanted
        tokens = [one.token for one in got[1]]
        params = SamplingParams(seed=1, max_tokens=20, logprobs=0)
        turn_two = GenerationRequest([*requests[1].prompt, *tokens, *b"and then?"], params)
        second = asyncio.run(outputs_of(engine, turn_two))
        assert second[0][0].cached_tokens >= len(requests[1].prompt) // 32 * 32
        assert metric(engine, "lanewise_state_snapshots_used_total") >= 4
        assert metric(engine, "lanewise_state_snapshots") > 0
        places = metric(engine, "lanewise_state_snapshot_places")
        assert metric(engine, "lanewise_state_bytes") % (4 + places) == 0
    with running(path, prefix_cache=False, max_step_tokens=512) as engine:
        assert sampled(asyncio.run(outputs_of(engine, turn_two))) == sampled(second)


def test_what_states_take_is_planned_and_told(path, caplog):
    with caplog.at_level(logging.INFO, "lanewise"), running(path, snapshot_memory=MIB) as engine:
        config = engine.config
    state = next(one for one in caplog.messages if one.startswith("states: "))
    assert f"for 4 sequences and {config.n_snapshots} snapshots" in state
    settings = Settings(model=path, kv_memory=16 * MIB, max_seqs=4)
    model, text = opening.open_model(settings, 1, LIMIT)
    with model:
        plan = plan_cache(settings, model, None, LIMIT, None)
        layout = model.kv_layout(plan.kv_type, groups_by_window=True)
        place = layout.place_bytes(settings.draft_tokens)
        assert place > layout.state_bytes
        assert plan.state_bytes == (4 + plan.n_snapshots) * place
        assert plan.blocks * layout.block_bytes + plan.state_bytes <= 16 * MIB
        assert plan.n_snapshots == pytest.approx(plan.blocks / 32, abs=1)
        caplog.clear()
        less = plan_cache(replace(settings, max_seqs=100_000), model, None, LIMIT, None)
        assert 8 * MIB - place < less.max_seqs * place <= 8 * MIB
        assert f"max_seqs is lowered from 100000 to {less.max_seqs}: states of " in caplog.text
        with pytest.raises(HostError, match=r"beside .* for the states of one sequence"):
            plan_cache(replace(settings, kv_memory=1024), model, None, LIMIT, None)
        with pytest.raises(SettingsError, match="whose layers keep a state; accepted: a model"):
            open_draft(replace(settings, draft=path), text.tokenizer, 1, None)
