"""Sequences of models that keep a state: snapshots of it, and what is lost when a step fails.

The toy's state is a hash of all tokens in order, so a state of other tokens, one that was copied
too early or too late, and one that went through a token twice all change the answer.
"""

import random
from dataclasses import replace
from functools import cache

import pytest

from engine_by_hand import EngineByHand, answer_alone, outputs_of
from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import State
from lanewise.engine.base.snapshots import Snapshots
from lanewise.engine.base.stream import EngineError
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.runtime import BLOCK_TOKENS
from scheduling import run, sequence
from topics import cases

CONFIG = EngineConfig(
    n_blocks=64,
    max_model_len=640,
    vocab_size=1,  # replaced by the tokenizer's
    max_seqs=4,
    max_step_tokens=400,
    max_step_logits=40,
    max_queued_requests=100,
    n_snapshots=8,
)
SYSTEM = "you are a helpful assistant of a small firm that ships goods by sea and by land " * 5
DOCUMENT = "the sea was calm that morning, and nobody on the quay had seen the ship leave " * 6
NEVER = float("inf")


def request(prompt: str, max_tokens: int = 4, **params) -> GenerationRequest:
    sampling = {"seed": len(prompt), "max_tokens": max_tokens} | params
    return GenerationRequest(list(prompt.encode()), SamplingParams(**sampling))


def tokens_of(group, index: int = 0) -> list[int]:
    return [one.sampled.token for one in outputs_of(group)[index] if one.sampled]


def check_places(engine: Engine) -> None:
    """Every place of a snapshot is free, found by one key, or about to be."""
    states = engine._scheduler.states
    snapshots = states.snapshots
    flight = engine._steps._in_flight
    promised = [] if flight is None else [turn.snapshot for turn in flight.step.turns]
    places = [*snapshots._free, *snapshots._place_of.values()]
    places += [place for place in promised if place is not None]
    first = engine.config.max_seqs
    assert sorted(places) == list(range(first, first + snapshots.n_places))


def check_nothing_is_left(engine: Engine) -> None:
    scheduler = engine._scheduler
    assert engine._pool.n_used == 0
    assert sorted(scheduler.blocks.free_rows) == list(range(engine.config.max_seqs))
    assert engine._admission.unfinished == 0
    assert (scheduler.states._plans, scheduler.states._coming) == ({}, {})
    assert len(scheduler._suspects) == 0
    check_places(engine)


class Watched:
    """An engine whose sequences can be looked at after their end."""

    def __init__(self, config: EngineConfig, failures: dict[int, str] | None = None) -> None:
        self.by_hand = EngineByHand(config, failures)

    @property
    def scheduler(self) -> Scheduler:
        return self.by_hand.engine._scheduler

    def submit(self, *requests: GenerationRequest):
        group = self.by_hand.submit(requests)
        return group, [job.sequence for job in group.jobs.values()]

    def answer(self, one: GenerationRequest):
        """The sequence of a request, and what it got."""
        group, (sequence,) = self.submit(one)
        self.by_hand.run_to_end()
        return sequence, tokens_of(group)


@pytest.mark.parametrize("max_step_tokens", [64, 400])
def test_the_next_turn_of_a_conversation_computes_at_most_what_is_behind_a_snapshot(
    max_step_tokens,
):
    config = replace(CONFIG, max_step_tokens=max_step_tokens)
    watched = Watched(config)
    first, answer = watched.answer(request(SYSTEM[:300], 90))
    text = [*first.request.prompt, *answer, *b" and now something else"]
    turn_two = GenerationRequest(text, SamplingParams(seed=1, max_tokens=9))
    second, got = watched.answer(turn_two)
    assert second.n_reused == 288  # the last whole block of the first prompt
    assert got == answer_alone(turn_two, CONFIG)
    long_answer = request(SYSTEM[:70], 300)
    first, answer = watched.answer(long_answer)
    text = [*first.request.prompt, *answer, *b"?"]
    again, got = watched.answer(GenerationRequest(text, SamplingParams(seed=1, max_tokens=9)))
    assert again.n_reused == 256  # in the middle of the answer
    check_nothing_is_left(watched.by_hand.engine)


def test_an_answer_leaves_no_more_than_its_last_snapshot_to_crowd_out_others():
    watched = Watched(replace(CONFIG, n_snapshots=3, snapshot_blocks=1))
    prompt = request(DOCUMENT[:100], 1)
    watched.answer(prompt)
    watched.answer(request("x", 500))
    again, _ = watched.answer(prompt)
    assert again.n_reused == 96


def test_what_many_users_have_in_common_is_computed_once():
    watched = Watched(replace(CONFIG, max_seqs=8, max_step_tokens=64))
    asked = [request(SYSTEM + f"question {i}", 3) for i in range(8)]
    submitted = [watched.submit(one) for one in asked]
    watched.by_hand.run_to_end()
    common = len(SYSTEM) // BLOCK_TOKENS * BLOCK_TOKENS
    assert [one.n_reused for _, (one,) in submitted] == [0] + [common] * 7
    for one, (group, _) in zip(asked, submitted, strict=True):
        assert tokens_of(group) == answer_alone(one, CONFIG)
    assert watched.scheduler.states.snapshots.n_used == 7


def test_where_two_prompts_part_the_third_goes_on():
    watched = Watched(CONFIG)
    common = SYSTEM[:250]
    for i, n_reused in enumerate([0, 0, 224, 224]):
        one = request(common + DOCUMENT[40 * i : 40 * i + 100], 3)
        sequence, got = watched.answer(one)
        assert sequence.n_reused == n_reused
        assert got == answer_alone(one, CONFIG)


def test_answers_to_one_prompt_compute_it_once():
    watched = Watched(CONFIG)
    one = request(DOCUMENT[:200], 5)
    group, sequences = watched.submit(*[replace(one, choice=i) for i in range(4)])
    watched.by_hand.run_to_end()
    assert [sequence.n_reused for sequence in sequences] == [0, 192, 192, 192]
    for choice in range(4):
        assert tokens_of(group, choice) == answer_alone(replace(one, choice=choice), CONFIG)


def test_short_prompts_are_run_in_one_step():
    watched = Watched(CONFIG)
    watched.answer(request(DOCUMENT[: 2 * BLOCK_TOKENS], 1))
    assert [len(batch.token_ids) for batch in watched.by_hand.runner.batches] == [64]


def test_without_the_cache_or_places_nothing_is_copied():
    for changes in ({"prefix_cache": False}, {"n_snapshots": 0}):
        watched = Watched(replace(CONFIG, **changes))
        for _ in range(2):
            sequence, _ = watched.answer(request(DOCUMENT[:300], 40))
            assert sequence.n_reused == 0
        assert not any(batch.state_copies for batch in watched.by_hand.runner.batches)
        check_nothing_is_left(watched.by_hand.engine)


@pytest.mark.parametrize("min_ahead_s", [0.0, NEVER])
def test_who_makes_a_step_fail_ends_alone_and_the_others_lose_nothing(min_ahead_s):
    config = replace(CONFIG, min_ahead_s=min_ahead_s, max_step_tokens=64)
    good = [request(DOCUMENT[i : 90 * i + 60], 40) for i in range(3)]
    wanted = [answer_alone(one, CONFIG) for one in good]
    bad = request("zz", 40, seed=9)
    mine = answer_alone(bad, CONFIG)[:-1]
    others = set().union(*wanted, *[one.prompt for one in good])
    watched = Watched(config)
    runner = watched.by_hand.runner
    runner.fail_on_token = [one for one in mine if one not in others][-1]
    submitted = [watched.submit(one) for one in (*good, bad)]
    sent = 0
    while not watched.by_hand.is_idle:
        watched.by_hand.advance()
        check_places(watched.by_hand.engine)
        now = sum(len(outputs) for group, _ in submitted for outputs in outputs_of(group))
        assert now >= sent
        sent = now
    assert isinstance(submitted[-1][0].stream._error, EngineError)
    for (group, _), answer in zip(submitted, wanted, strict=False):
        assert tokens_of(group) == answer
    check_nothing_is_left(watched.by_hand.engine)


def test_a_prompt_that_is_scored_is_scored_once_though_a_step_fails():
    scored = request(DOCUMENT[:150], 3, prompt_logprobs=0)
    other = request(SYSTEM[:100], 30)
    alone = Watched(CONFIG)
    group, _ = alone.submit(scored)
    alone.by_hand.run_to_end()
    wanted = [list(output.prompt_scores) for output in outputs_of(group)[0]]
    watched = Watched(CONFIG, {1: "failed"})
    group, _ = watched.submit(scored)
    beside, _ = watched.submit(other)
    watched.by_hand.run_to_end()
    got = [list(output.prompt_scores) for output in outputs_of(group)[0]]
    assert got == wanted
    assert tokens_of(beside) == answer_alone(other, CONFIG)


def test_a_prompt_that_is_scored_from_later_on_starts_behind_what_is_known():
    alone = Watched(CONFIG)
    group, _ = alone.submit(request(DOCUMENT[:200], 0, prompt_logprobs=0))
    alone.by_hand.run_to_end()
    whole = list(outputs_of(group)[0][0].prompt_scores)
    watched = Watched(CONFIG)
    for end in (170, 200):  # the first leaves a state at the end of what both have
        scored = request(DOCUMENT[:end], 0, prompt_logprobs=0, score_from=140)
        group, (sequence,) = watched.submit(scored)
        watched.by_hand.run_to_end()
        scores = list(outputs_of(group)[0][0].prompt_scores)
        assert scores == whole[139 : end - 1]
    assert sequence.n_reused == 128


def test_a_draw_that_finds_no_number_leaves_no_state_behind():
    watched = Watched(CONFIG)
    prompt = request(DOCUMENT[:200], 4)
    sequence, _ = watched.answer(prompt)
    watched.scheduler.states.hide(sequence)
    again, _ = watched.answer(prompt)
    assert again.n_reused == 0


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_what_a_step_behind_a_failed_one_has_run_is_run_again(kind):
    watched = Watched(replace(CONFIG, max_step_tokens=40), {2: kind})
    watched.by_hand.runner.runs_behind_failures = True
    ending, reading = request("short", 3), request(DOCUMENT[:300], 5)
    groups = [watched.submit(one)[0] for one in (ending, reading)]
    watched.by_hand.run_to_end()
    for one, group in zip((ending, reading), groups, strict=True):
        assert tokens_of(group) == answer_alone(one, CONFIG)
    check_nothing_is_left(watched.by_hand.engine)


def test_a_snapshot_that_is_used_stays_longer_than_others():
    watched = Watched(replace(CONFIG, n_snapshots=2))
    first, second = request(DOCUMENT[:100], 1), request(SYSTEM[:100], 1)
    for one in (first, second, first, request("y" * 100, 1)):
        watched.answer(one)
    assert watched.answer(first)[0].n_reused == 96
    assert watched.answer(second)[0].n_reused == 0


def test_tokens_that_are_put_behind_an_answer_together_are_cut_too():
    scheduler = Scheduler(replace(CONFIG, snapshot_blocks=1), BlockPool(64))
    (one,) = (sequence(70, 100),)
    scheduler.add(one)
    run(scheduler)  # up to block 2
    run(scheduler)  # and a token is drawn
    one.tokens += range(60)
    assert [run(scheduler)[0] for _ in range(3)] == [26, 32, 3]
    assert scheduler.states.snapshots.n_taken == 3


@pytest.fixture
def rows_are_free(monkeypatch):
    """Every step takes as long as any other, so that every guess is worth its row."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)


ABC = (97, 98, 99)  # who may write these only repeats itself


def guessing(config: EngineConfig, **more) -> Watched:
    return Watched(replace(config, max_draft=6, **more))


def n_accepted(watched: Watched) -> int:
    return sum(sum(batch.accepted or ()) for batch in watched.by_hand.runner.batches)


@pytest.mark.parametrize("every", [1, 2, 8])
def test_a_snapshot_is_taken_where_guesses_came_true_as_anywhere(rows_are_free, every):
    only_one = {"allowed_token_ids": (97,), "max_tokens": 200}
    watched = guessing(CONFIG, snapshot_blocks=every)
    first, answer = watched.answer(request("aaaa", **only_one))
    text = [*first.request.prompt, *answer]
    assert len(watched.by_hand.runner.batches) < 60
    turn_two = GenerationRequest(text, SamplingParams(seed=1, max_tokens=9))
    again, got = watched.answer(turn_two)
    assert again.n_reused == (192 if every < 8 else 0)
    assert got == answer_alone(turn_two, CONFIG)
    third, got = watched.answer(turn_two)
    assert (third.n_reused, got) == (192, answer_alone(turn_two, CONFIG))
    check_nothing_is_left(watched.by_hand.engine)


def test_guesses_that_came_true_are_told_though_the_next_step_is_begun_ahead(rows_are_free):
    watched = guessing(CONFIG)
    asked = request(DOCUMENT[:100], 60, allowed_token_ids=ABC)
    group, _ = watched.submit(asked)
    speculator = watched.by_hand.engine._speculator
    n_ahead = 0
    while not watched.by_hand.is_idle:
        n_ahead += watched.by_hand.engine._steps.has_step_in_flight
        # The next step waits for guesses every third time only.
        speculator.wants = lambda *_: len(watched.by_hand.runner.batches) % 3 == 0
        watched.by_hand.advance()
    assert n_ahead > 10
    assert n_accepted(watched) > 3
    assert tokens_of(group) == answer_alone(asked, CONFIG)


@pytest.mark.parametrize("guesses", [False, True])
@pytest.mark.parametrize("seed", range(cases(8, 24)))
def test_answers_in_a_storm_are_those_of_requests_alone(seed, guesses, rows_are_free):
    numbers = random.Random(seed)
    max_seqs = numbers.randint(1, 6)
    windows = numbers.choice([(None,), (None, 40), (64, None, 33)])
    config = replace(
        CONFIG,
        n_blocks=(10 + numbers.randint(0, 20)) * len(windows),
        max_model_len=320,
        max_seqs=max_seqs,
        max_step_tokens=max_seqs + numbers.choice([3, 40, 70, 300]),
        n_snapshots=numbers.choice([0, 1, 2, 3, 5, 12]),
        snapshot_blocks=numbers.choice([1, 1, 2, 8]),
        min_ahead_s=numbers.choice([0.0, 0.0, NEVER]),
        windows=windows,
        max_draft=numbers.choice([1, 6, 40]) if guesses else 0,
    )
    kinds = ["refused", "failed", "failed", "not begun"]
    rate = numbers.choice([0.0, 0.05, 0.2])
    failures = {i: numbers.choice(kinds) for i in range(4000) if numbers.random() < rate}
    by_hand = EngineByHand(config, failures)
    by_hand.runner.runs_behind_failures = numbers.random() < 0.5
    talks: list[bytes] = []
    asked, n_turns, n_seen = [], 0, 0
    while n_turns < 420 or not by_hand.is_idle:
        if n_turns < 420 and numbers.random() < 0.6:
            prompt = new_prompt(numbers, talks)
            params = SamplingParams(
                seed=numbers.randint(0, 3),
                max_tokens=numbers.randint(1, 45),
                allowed_token_ids=ABC[: numbers.randint(1, 3)] if guesses else None,
            )
            one = GenerationRequest(
                list(prompt),
                params,
                client=numbers.randint(0, 2),
                priority=numbers.choice([0, 0, 0, -1, 1]),
            )
            if by_hand.engine._admission.unfinished < 12:
                asked.append((one, by_hand.submit([one])))
        if numbers.random() < 0.08 and asked:
            numbers.choice(asked[-8:])[1].stream.cancel()
        by_hand.advance()
        check_places(by_hand.engine)
        batches, n_seen = by_hand.runner.batches[n_seen:], len(by_hand.runner.batches)
        n_turns += sum(len(batch.context_lens) for batch in batches)
    n_failed = 0
    for one, group in asked:
        if group.stream.cancelled:
            continue
        if group.stream._error is not None:
            n_failed += 1
            continue
        answer = tokens_of(group)
        key = (
            bytes(one.prompt),
            one.params.seed,
            one.params.max_tokens,
            one.params.allowed_token_ids,
        )
        assert answer == list(answer_in(windows, *key))
    assert n_failed <= by_hand.runner.n_failed
    assert guesses or not any(batch.accepted for batch in by_hand.runner.batches)
    check_nothing_is_left(by_hand.engine)


@cache
def answer_in(windows, prompt: bytes, seed: int, max_tokens: int, allowed) -> tuple[int, ...]:
    params = SamplingParams(seed=seed, max_tokens=max_tokens, allowed_token_ids=allowed)
    config = replace(CONFIG, windows=windows, prefix_cache=False, min_ahead_s=NEVER)
    by_hand = EngineByHand(replace(config, n_blocks=64 * len(windows)))
    group = by_hand.submit([GenerationRequest(list(prompt), params)])
    by_hand.run_to_end()
    return tuple(tokens_of(group))


def new_prompt(numbers: random.Random, talks: list[bytes]) -> bytes:
    """A new text, one that begins as another, or the next turn of a conversation."""
    kind = numbers.random()
    if talks and kind < 0.5:
        prompt = numbers.choice(talks)
        prompt = prompt[: numbers.randint(1, len(prompt))] if kind < 0.15 else prompt
    else:
        text = numbers.choice([SYSTEM, DOCUMENT, SYSTEM[::-1]]).encode()
        prompt = text[: numbers.choice([20, 64, 96, 130, 200])]
    prompt += bytes(numbers.choices(b"abcdefghij", k=numbers.choice([0, 1, 5, 31, 32, 60])))
    prompt = prompt[:260] or b"x"
    talks.append(prompt)
    return prompt


def test_who_is_preempted_goes_on_behind_a_snapshot():
    config = replace(CONFIG, n_blocks=20, max_seqs=2, snapshot_blocks=1)
    watched = Watched(config)
    old, new = request(DOCUMENT[:200], 200), request(SYSTEM[:250], 200)
    (old_group, _), (new_group, (second,)) = watched.submit(old), watched.submit(new)
    cached = []
    while not watched.by_hand.is_idle:
        before = second.n_preempted
        watched.by_hand.advance()
        if second.state is State.RUNNING and second.n_preempted and before == second.n_preempted:
            cached.append(second.n_cached)
    assert second.n_preempted > 0
    assert min(cached) >= 224
    assert tokens_of(old_group) == answer_alone(old, CONFIG)
    assert tokens_of(new_group) == answer_alone(new, CONFIG)


def test_copies_that_were_not_made_come_before_later_ones():
    snapshots = Snapshots(4, 1)
    place = snapshots.take(0)
    snapshots.keep(b"key", place)
    taken = snapshots.take_copies()
    snapshots.restore(b"key", 1)
    snapshots.give_back(taken)
    assert snapshots.take_copies() == [(0, place), (place, 1)]
