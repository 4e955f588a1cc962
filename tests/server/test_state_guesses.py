"""Guesses of models that keep a state, with the real library: the same bits as without."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest

from family_models import write_case
from lanewise.engine.engine import Engine
from lanewise.engine.request import GenerationRequest, SamplingParams
from lanewise.engine.row_costs import RowCosts
from lanewise.host import GIB, MIB, MemoryLimit
from lanewise.runtime import BLOCK_TOKENS
from lanewise.server import make_engine as making
from lanewise.server import opening
from lanewise.server.draft import open_draft
from lanewise.settings import Settings
from toy_server import metric, outputs_of

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library", "rows_are_free")]

LIMIT = MemoryLimit(GIB, "test", dedicated=True)
CONTEXT = {"max_position_embeddings": 512}
SYSTEM = list(b"what many have in common, and is longer than a few blocks of the cache are; " * 2)
# Of a model that may write three letters only many guesses come true, and many do not.
ABC = (97, 98, 99)
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


@contextmanager
def running(path: str, **changes):
    """An engine as ``lanewise serve`` makes it."""
    settings = Settings(model=path, kv_memory=16 * MIB, max_seqs=4, max_step_tokens=64)
    settings = replace(settings, served_model_name=("toy",), **changes)
    model, text = opening.open_model(settings, 2, LIMIT)
    draft = open_draft(settings, text.tokenizer, 2, None)
    with model:
        engine = making.make_engine(settings, model, draft, text.tokenizer, 2, LIMIT, None)
        engine.start()
        try:
            yield engine
        finally:
            engine.stop()
            if draft is not None:
                draft.model.close()


def asked() -> list[GenerationRequest]:
    """Prompts with a common beginning, greedy and seeded."""
    params = SamplingParams(seed=3, max_tokens=70, logprobs=2, allowed_token_ids=ABC)
    kinds = [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "seed": 9}]
    return [
        GenerationRequest([*SYSTEM[: 40 * i + 30], *b"abcab" * i], replace(params, **kinds[i % 3]))
        for i in range(4)
    ]


async def together(engine: Engine, requests: list[GenerationRequest]):
    return await asyncio.gather(*[outputs_of(engine, one) for one in requests])


def sampled(outputs) -> list:
    return [one.sampled for one in outputs[0]]


def came_true(engine: Engine) -> float:
    return metric(engine, "vllm:spec_decode_num_accepted_tokens_total")


@pytest.fixture(scope="module")
def plain(path):
    """What is answered without speculation, one after the other."""
    with running(path, speculation=False, prefix_cache=False) as engine:
        return [sampled(asyncio.run(outputs_of(engine, one))) for one in asked()]


def test_answers_are_those_without_guesses(path, plain):
    with running(path) as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked()))] == plain
        assert came_true(engine) > 20
        # The next turn goes on behind an answer of which much was guessed.
        tokens = [one.token for one in plain[0]]
        params = SamplingParams(seed=1, max_tokens=30, allowed_token_ids=ABC)
        turn_two = GenerationRequest([*asked()[0].prompt, *tokens, *b"abc"], params)
        second = asyncio.run(outputs_of(engine, turn_two))
    with running(path, speculation=False, prefix_cache=False) as engine:
        assert sampled(second) == sampled(asyncio.run(outputs_of(engine, turn_two)))


def test_a_crowd_that_is_preempted_gets_them_too(path, plain, monkeypatch):
    plan = making.plan_cache
    small = {"blocks": 14, "max_model_len": 13 * BLOCK_TOKENS, "max_seqs": 8, "n_snapshots": 6}
    monkeypatch.setattr(making, "plan_cache", lambda *given: replace(plan(*given), **small))
    with running(path, max_seqs=8, draft_tokens=5) as engine:
        got = asyncio.run(together(engine, asked() * 2))
        assert [sampled(one) for one in got] == plain * 2
        assert metric(engine, "vllm:num_preemptions_total") > 0
        assert came_true(engine) > 20


def test_a_draft_model_without_a_state_guesses_for_one_with(path, plain, draft_path):
    with running(path, draft=draft_path) as engine:
        assert [sampled(one) for one in asyncio.run(together(engine, asked()))] == plain
        assert came_true(engine) > 20
