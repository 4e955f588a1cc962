"""Grammars of many clients: what they take together in one step has a bound, and all go on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.drawing import constraint, masks
from lanewise.engine.scheduling.grammar_time import STEP_S, held_back, total_s
from lanewise.text.grammar import GrammarCompiler, GrammarSource
from scheduling import sequence
from toy_server import outputs_of
from toy_tokenizer import toy_tokenizer

TOKENIZER = toy_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size + len(TOKENIZER.unused_ids))
HEAVY, LIGHT = "[ab]{12}", "[cd]{12}"
HEAVY_S = 0.0125


def drawing(costs):
    made = [sequence(1) for _ in costs]
    for one, seconds in zip(made, costs, strict=True):
        one.grammar_s = seconds
    return made


def test_what_draws_in_a_step_takes_no_more_than_it_may_and_one_more():
    draw = random.Random(3)
    for _ in range(200):
        costs = [draw.choice([0.0001, 0.001, 0.003, 0.03]) for _ in range(draw.randrange(1, 60))]
        sequences = drawing(costs)
        held = held_back(sequences, STEP_S)
        chosen = [one for one in sequences if one not in held]
        assert chosen
        assert total_s(chosen) <= STEP_S + max(one.grammar_s for one in chosen)
        share = STEP_S / len(sequences)
        assert all(one in chosen for one in sequences if one.grammar_s <= share)


def test_all_fit_where_they_take_little():
    assert held_back(drawing([0.001] * 20), STEP_S) == set()
    assert held_back(drawing([1.0]), STEP_S) == set()


def test_heavy_grammars_take_turns_beside_a_light_one():
    heavy, (light,) = drawing([0.01] * 9), drawing([0.0005])
    drew = Counter()
    for _ in range(90):
        held = held_back([*heavy, light], STEP_S)
        drew.update(one for one in [*heavy, light] if one not in held)
    assert drew[light] == 90
    assert min(drew[one] for one in heavy) >= 90 / 5  # two a step, the longest held first


def request(pattern, prompt, seed):
    source = None if pattern is None else GrammarSource("regex", pattern)
    grammar = None if source is None else COMPILER.cached(source) or COMPILER.compile(source)
    params = SamplingParams(seed=seed, max_tokens=40, stop_token_ids=TOKENIZER.eos_ids)
    return GenerationRequest(list(prompt.encode()), params, grammar=grammar)


def asked():
    heavy = [request(HEAVY, f"h{n}", n) for n in range(6)]
    return [*heavy, request(LIGHT, "light", 7), request(None, "free", 8)]


def texts_of(engine, runner, requests):
    """Answers of requests that begin in one step: another holds the engine until all are there."""
    runner.gate.clear()

    async def together():
        company = asyncio.create_task(outputs_of(engine, request(None, "company", 9)))
        while not engine.step_age_s():  # noqa: ASYNC110 - the engine is another thread
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(outputs_of(engine, one)) for one in requests]
        while engine.unfinished < 1 + len(requests):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        runner.gate.set()
        await company
        return await asyncio.gather(*tasks)

    return [
        TOKENIZER.decode([output.sampled.token for output in outputs if output.sampled])
        for (outputs,) in asyncio.run(together())
    ]


@pytest.fixture
def clock(monkeypatch):
    """Processor time that only masks of HEAVY take."""
    now = [0.0]
    heavy = COMPILER.compile(GrammarSource("regex", HEAVY))
    monkeypatch.setattr(constraint, "MAX_DEBT_S", 1e9)  # one by itself may take so much
    monkeypatch.setattr(masks, "LIGHT_S", 60.0)
    monkeypatch.setattr(constraint.time, "thread_time", lambda: now[0])
    monkeypatch.setattr(heavy, "new_matcher", lambda make=heavy.new_matcher: Slow(make(), now))
    monkeypatch.setattr(heavy, "begun_matcher", lambda make=heavy.begun_matcher: Slow(make(), now))
    return now


class Slow:
    """A matcher whose masks take time."""

    def __init__(self, matcher, now):
        self._matcher, self._now = matcher, now

    def unsafe_compute_mask_ptr(self, address, n_bytes):
        self._now[0] += HEAVY_S
        self._matcher.unsafe_compute_mask_ptr(address, n_bytes)

    def __getattr__(self, name):
        return getattr(self._matcher, name)


def test_a_step_waits_for_few_heavy_grammars_and_answers_stay_the_same(start, clock, monkeypatch):
    engine, runner = start(max_seqs=9, max_step_tokens=64)
    alone = [texts_of(engine, runner, [one])[0] for one in asked()]
    spent = Counter()
    begin = masks.MaskFiller.begin

    def weighed(filler, constraints):
        before = clock[0]
        begin(filler, constraints)
        spent[len(runner.batches)] = clock[0] - before

    monkeypatch.setattr(masks.MaskFiller, "begin", weighed)
    assert texts_of(engine, runner, asked()) == alone
    assert sum(spent.values()) >= 6 * 10 * HEAVY_S
    # What a first token takes is not known: the bound holds from then on.
    assert max(list(spent.values())[1:]) <= STEP_S + HEAVY_S
