"""Sequences with a grammar in the engine, around the toy model."""

import asyncio
import re
import time
from itertools import chain, count, repeat

import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.drawing import constraint, masks
from lanewise.engine.drawing.constraint import ConstraintError
from lanewise.text.grammar import GrammarCompiler, GrammarSource
from toy_server import metric, outputs_of
from toy_tokenizer import toy_tokenizer

pytestmark = pytest.mark.usefixtures("masks_filled")

TOKENIZER = toy_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size + len(TOKENIZER.unused_ids))
(EOS,) = TOKENIZER.eos_ids
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"enum": ["very large", "very small"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "size", "n"],
    "additionalProperties": False,
}
OBJECT = GrammarSource.from_json_schema(SCHEMA)
AS_TEXT = re.compile(r'\{"name": ".*", "size": "very (large|small)", "n": \d+\}', re.DOTALL)


@pytest.fixture(params=["before the step", "beside the step"])
def masks_filled(request, monkeypatch):
    monkeypatch.setattr(masks, "LIGHT_S", 60.0 if request.param == "before the step" else -1.0)


def request(source, prompt="abc", choice=0, **params):
    settings = {"seed": 1, "max_tokens": 150, "stop_token_ids": TOKENIZER.eos_ids} | params
    grammar = None if source is None else COMPILER.compile(source)
    ids, params = list(prompt.encode()), SamplingParams(**settings)
    return GenerationRequest(ids, params, choice, grammar=grammar)


def pattern(text, **params):
    return request(GrammarSource("regex", text), **params)


async def answer_of(engine, one):
    """The text of an answer without its end, its finish reason and its outputs."""
    (outputs,) = await outputs_of(engine, one)
    ids = [output.sampled.token for output in outputs if output.sampled]
    return TOKENIZER.decode(ids), outputs[-1].finish_reason, outputs


def run(engine, *requests):
    async def together():
        return await asyncio.gather(*[answer_of(engine, one) for one in requests])

    return asyncio.run(together())


def mixed_requests():
    constrained = [request(OBJECT, "x" * (3 * i + 1), seed=i) for i in range(5)]
    return [*constrained, *(request(None, "free" * i, max_tokens=150) for i in range(1, 4))]


def test_answers_are_the_same_alone_in_company_and_across_preemption(start):
    calm, _ = start()
    alone = [run(calm, one)[0] for one in mixed_requests()]
    for text, reason, _ in alone[:5]:
        assert (bool(AS_TEXT.fullmatch(text)), reason) == (True, "stop")
    crowded, _ = start(n_blocks=8, max_model_len=256, max_step_tokens=11, max_step_logits=8)
    assert [one[:2] for one in run(crowded, *mixed_requests())] == [one[:2] for one in alone]
    assert metric(crowded, "vllm:num_preemptions_total") > 0
    assert metric(crowded, "lanewise_kv_blocks_used") == 0


def test_forced_tokens_skip_the_model_and_count_as_tokens(start):
    engine, runner = start()
    ((text, _, outputs),) = run(engine, request(OBJECT))
    n_tokens = len(TOKENIZER.encode_inside(text))
    assert len(outputs) >= n_tokens - 5  # characters of random bytes may be cut otherwise
    assert metric(engine, "vllm:generation_tokens_total") == len(outputs)
    assert metric(engine, "lanewise_forced_tokens_total") >= len('{"name": ""size": "very large')
    assert len(runner.batches) <= len(outputs) - metric(engine, "lanewise_forced_tokens_total") + 1
    # With log-probabilities the same tokens go one by one, and each has its own.
    ((again, _, scored),) = run(engine, request(OBJECT, logprobs=2))
    assert again == text
    assert all(output.sampled.logprob < 0 and len(output.sampled.top) == 2 for output in scored)
    assert [o.sampled.token for o in scored] == [o.sampled.token for o in outputs]


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("max_tokens", [0, 1, 4, 5, 6])
def test_max_tokens_cuts_and_completion_stops(start, max_tokens, logprobs):
    engine, runner = start()
    answer = pattern("abc12", max_tokens=max_tokens, logprobs=logprobs)
    ((text, reason, outputs),) = run(engine, answer)
    assert text == "abc12"[:max_tokens]
    assert reason == ("length" if max_tokens < 5 else "stop")
    assert outputs[-1].ends_complete == (reason == "stop")
    assert len(runner.batches) == (1 if logprobs is None else max(1, min(max_tokens, 5)))


def test_ends_come_where_the_grammar_may_end_and_nowhere_else(start):
    engine, _ = start()
    b = ord("b")
    cases = [
        (pattern("[ab]{2,9}", seed=seed, **more), wanted)
        for seed in range(8)
        for more, wanted in [
            ({}, "[ab]{2,9}"),
            ({"min_tokens": 5}, "[ab]{5,9}"),
            ({"min_tokens": 50}, "[ab]{9}"),  # no more than the grammar has
            ({"stop_token_ids": frozenset()}, "[ab]{9}"),  # ignore_eos
            ({"stop_token_ids": frozenset([EOS, b])}, "a{2,9}b?"),
            ({"allowed_token_ids": (b,)}, "b{2,9}"),
            ({"logit_bias": ((b, -100.0),)}, "a{2,9}"),
            ({"temperature": 0.0, "repetition_penalty": 1.5, "top_k": 3}, "[ab]{2,9}"),
        ]
    ]
    for start_at in range(0, len(cases), 8):
        some = cases[start_at : start_at + 8]
        found = run(engine, *(one for one, _ in some))
        for (text, reason, _), (_, wanted) in zip(found, some, strict=True):
            assert reason == "stop"
            assert re.fullmatch(wanted, text.removesuffix("</s>")), (text, wanted)


def test_what_cannot_go_on_fails_without_the_others(start):
    engine, _ = start()
    stuck = pattern("[ab]{3}c[ab]", allowed_token_ids=(ord("a"),))

    async def ask():
        asked = [answer_of(engine, one) for one in (request(OBJECT), stuck, request(None))]
        return await asyncio.gather(*asked, return_exceptions=True)

    good, bad, free = asyncio.run(ask())
    assert isinstance(bad, ConstraintError)
    assert "no token is allowed by both" in str(bad)
    assert AS_TEXT.fullmatch(good[0])
    assert free[1] in ("stop", "length")
    assert metric(engine, "lanewise_step_errors_total") == 0


def test_choices_share_blocks_and_differ(start):
    engine, _ = start()
    prompt = "p" * 70
    requests = [request(OBJECT, prompt, choice=choice) for choice in range(4)]
    found = [text for text, _, _ in run(engine, *requests)]
    assert len(set(found)) == 4
    assert all(map(AS_TEXT.fullmatch, found))
    assert metric(engine, "vllm:prefix_cache_hits_total") > 0
    assert found == [run(engine, one)[0][0] for one in requests]


def test_a_machine_that_stands_still_condemns_no_grammar(start, monkeypatch):
    engine, _ = start()
    clock, still = time.thread_time, chain([0.0], repeat(10.0))  # seconds, once for all
    monkeypatch.setattr(time, "thread_time", lambda: clock() + next(still))
    ((text, _, _),) = run(engine, request(OBJECT))
    assert AS_TEXT.fullmatch(text)


@pytest.mark.parametrize("first_s", [0.0001, 0.002])
def test_what_becomes_dear_with_its_text_is_ended_before_it_is_dear(start, monkeypatch, first_s):
    engine, _ = start()
    now, calls = 0.0, count()

    def tick() -> float:
        nonlocal now
        now += first_s if next(calls) < 200 else 0.002  # less than TOKEN_S
        return now

    monkeypatch.setattr(time, "thread_time", tick)
    long = request(GrammarSource.from_regex("[a-z]{400}"), max_tokens=400)
    if first_s < 0.001:
        with pytest.raises(ConstraintError, match="takes more than"):
            run(engine, long)
    else:
        assert len(run(engine, long)[0][0]) >= 300


def test_a_grammar_that_is_heavy_again_and_again_ends_its_own_requests(start, monkeypatch):
    monkeypatch.setattr(constraint, "TOKEN_S", 0.0001)
    monkeypatch.setattr(constraint, "MAX_DEBT_S", 0.005)
    engine, _ = start()
    ambiguous = GrammarSource.from_grammar('start: s\ns: s s | "a" | s s s | "b" s s | ')
    heavy = request(ambiguous, max_tokens=150, stop_token_ids=frozenset())

    async def ask():
        asked = [answer_of(engine, one) for one in (heavy, heavy, request(None))]
        return await asyncio.gather(*asked, return_exceptions=True)

    *bad, free = asyncio.run(ask())
    assert {str(error) for error in bad} == {constraint.TOO_HEAVY}
    assert free[1] in ("stop", "length")
    assert heavy.grammar.debt_s > constraint.MAX_DEBT_S
    assert metric(engine, "lanewise_step_errors_total") == 0
    with pytest.raises(ConstraintError, match="takes more than"):
        run(engine, heavy)  # before it costs anything
