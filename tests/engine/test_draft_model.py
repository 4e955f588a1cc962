"""A draft model beside the large one: its cache follows, its guesses never show in an answer."""

import asyncio
from dataclasses import replace

import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.stream import TokenOutput
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.draft_model import DraftModel
from lanewise.engine.guessing.prompt_lookup import PromptLookup
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.runtime import Sampled
from toy import ToyRunner
from toy_server import CONFIG, make_engine, metric, outputs_of
from toy_tokenizer import toy_tokenizer


class Cheap(RowCosts):
    """All steps take equally long; those of the draft model next to nothing."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._each = seconds

    are_known = True

    def seconds(self, rows: int) -> float:
        return self._each


class Forgetful(ToyRunner):
    """A draft model that is wrong at every third place."""

    def step_and_draw(self, batch, draws):
        drawn = super().step_and_draw(batch, draws)
        return [
            Sampled((one.token + (draw.position % 3 == 0)) % 256, 0.0)
            for one, draw in zip(drawn, draws, strict=True)
        ]


@pytest.fixture
def start(monkeypatch, run_engine):
    monkeypatch.setattr(PromptLookup, "find", lambda self, tokens: (0, 0))  # the other guesser

    def start_engine(kind: type[ToyRunner] = ToyRunner, context_length=512, **changes):
        config = replace(CONFIG, **{"max_draft": 4, **changes})
        tokenizer = toy_tokenizer()
        runner = kind(
            n_blocks=config.n_blocks,
            vocab_size=tokenizer.vocab_size,
            max_batch_tokens=config.max_step_tokens,
            max_batch_logits=config.max_seqs,
        )
        draft = DraftModel(
            runner,
            vocab_size=tokenizer.vocab_size,
            usable_ids=range(tokenizer.vocab_size),
            context_length=context_length,
            max_step_tokens=config.max_step_tokens,
            prefix_cache=config.prefix_cache,
            n_blocks=config.n_blocks,
        )
        engine, _ = make_engine(config, draft if config.max_draft else None)
        if engine._speculator is not None:
            engine._speculator.costs = Cheap(1.0)
        draft.costs = Cheap(0.01)
        return run_engine(engine, runner)

    return start_engine


def request(prompt: str, **params) -> GenerationRequest:
    settings = {"seed": 1, "max_tokens": 40} | params
    return GenerationRequest(list(prompt.encode()), SamplingParams(**settings))


def answers(engine: Engine, *requests: GenerationRequest) -> list[list[TokenOutput]]:
    async def every() -> list[list[TokenOutput]]:
        alone = await asyncio.gather(*(outputs_of(engine, one) for one in requests))
        return [outputs for (outputs,) in alone]

    return asyncio.run(every())


def drafts(engine: Engine) -> tuple[float, float]:
    names = ("num_draft_tokens", "num_accepted_tokens")
    guessed, came = (metric(engine, f"vllm:spec_decode_{name}_total") for name in names)
    return guessed, came


def unlike(count: int) -> list[GenerationRequest]:
    return [request(chr(97 + i) + "bcdefgh" * (i + 1), seed=i) for i in range(count)]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 20}])
def test_a_draft_model_that_is_the_model_is_always_right(start, params):
    """Whatever its cache held wrong would be a wrong guess."""
    requests = [request(f"{i} some text" * 5, seed=i, **params) for i in range(4)]
    plain, _ = start(max_draft=0)
    engine, _ = start()
    assert answers(engine, *requests) == answers(plain, *requests)
    guessed, came = drafts(engine)
    assert guessed == came > 100


def test_answers_are_the_same_when_it_is_wrong_now_and_then(start):
    plain, _ = start(max_draft=0)
    engine, _ = start(Forgetful)
    assert answers(engine, *unlike(6)) == answers(plain, *unlike(6))
    guessed, came = drafts(engine)
    assert 0 < came < guessed


def test_it_follows_preemption_and_reads_long_prompts_in_pieces(start):
    requests = [request(f"{i}bcd" * (3 + 5 * i), seed=i, max_tokens=70) for i in range(8)]
    plain, _ = start(max_draft=0)
    crowded, runner = start(n_blocks=12, max_model_len=256, max_step_tokens=24)
    together = answers(crowded, *requests)
    assert [[o.sampled for o in one] for one in together] == [
        [o.sampled for o in one] for [one] in (answers(plain, r) for r in requests)
    ]
    assert metric(crowded, "vllm:num_preemptions_total") > 0
    guessed, came = drafts(crowded)
    assert guessed == came > 100
    assert max(len(batch.token_ids) for batch in runner.batches) <= 24
    assert metric(crowded, "lanewise_kv_blocks_used") == 0


def test_what_it_read_for_others_is_not_read_again(start):
    engine, runner = start()
    prompt = "0123456789" * 16
    answers(engine, request(prompt, max_tokens=8))
    read = sum(len(batch.token_ids) for batch in runner.batches)
    answers(engine, request(prompt + "!", max_tokens=8, seed=2))
    again = sum(len(batch.token_ids) for batch in runner.batches) - read
    assert read > 160
    assert 0 < again < 60


def test_it_guesses_nothing_beyond_its_own_context(start):
    engine, runner = start(context_length=60)
    [outputs] = answers(engine, request("a text", max_tokens=100))
    assert len(outputs) == 100
    ends = [
        c + s1 - s0
        for b in runner.batches
        for c, s0, s1 in zip(b.context_lens, b.query_start, b.query_start[1:], strict=False)
    ]
    assert 50 < max(ends) <= 60


def test_a_draft_model_that_fails_is_left_out(start, caplog):
    plain, _ = start(max_draft=0)
    engine, runner = start()
    runner.fail_on_token = ord("!")
    requests = [request("what now!"), request("go on")]
    assert answers(engine, *requests) == answers(plain, *requests)
    assert runner.closed
    assert "the draft model failed and is no longer used" in caplog.text


def test_closing_the_engine_closes_it(start):
    engine, runner = start()
    engine.stop()
    assert runner.closed
