"""Speculation: answers are those without it, guesses follow what they gain, nothing leaks."""

import asyncio
from dataclasses import replace

import pytest

import toy
from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import BACKGROUND, GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.stream import EngineError, TokenOutput
from lanewise.engine.engine import Engine
from lanewise.engine.guessing import speculation
from lanewise.engine.guessing.prompt_lookup import PromptLookup
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.engine.guessing.speculation import DRAFTED, Guess, Guesser, Speculator
from lanewise.engine.scheduling.pacing import Pacer
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.runtime import NONFINITE, NativeError, Sampled
from toy_server import metric, outputs_of

ABC = (97, 98, 99)


@pytest.fixture
def rows_are_free(monkeypatch):
    """Every step takes as long as any other, so that every guess is worth its row."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)


@pytest.fixture
def start(rows_are_free, start):
    return lambda **changes: start(**({"max_draft": 6} | changes))


def request(prompt="abcab" * 4, choice=0, max_draft=None, **params) -> GenerationRequest:
    """A toy that may write three letters only guesses right often enough."""
    settings = {"seed": 1, "max_tokens": 60, "allowed_token_ids": ABC, "logprobs": 2} | params
    ids = list(prompt.encode())
    return GenerationRequest(ids, SamplingParams(**settings), choice, max_draft=max_draft)


def answers(engine: Engine, *requests: GenerationRequest) -> list[list[TokenOutput]]:
    return asyncio.run(outputs_of(engine, *requests))


def drafts(engine: Engine) -> tuple[float, float, float]:
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    run, guessed, came = (metric(engine, f"vllm:spec_decode_{name}_total") for name in names)
    return run, guessed, came


KINDS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.8, "seed": 7},
    "truncated": {"temperature": 1.5, "top_k": 2, "top_p": 0.9, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2},
    "bias": {"logit_bias": ((98, 1.5), (99, -1.0))},
    "stop token": {"stop_token_ids": frozenset({99}), "logit_bias": ((99, -3.0),)},
    "min_tokens": {"stop_token_ids": frozenset({99}), "min_tokens": 12},
    "scored prompt": {"prompt_logprobs": 1},
}


def test_draws_that_fail_behind_guesses_count_as_far_as_the_guesses_come_true(start, monkeypatch):
    def outcome(engine: Engine, one: GenerationRequest) -> object:
        try:
            return answers(engine, one)
        except EngineError as error:
            return str(error)

    sample = toy._sample
    broken = Sampled(0, 0.0, error=NativeError("the logits hold NaN or infinity", NONFINITE))
    monkeypatch.setattr(
        toy, "_sample", lambda row, draw: sample(row, draw) if row.argmax() % 64 else broken
    )
    requests = [request("abcab" * 3, seed=seed) for seed in range(30)]
    plain, _ = start(max_draft=0)
    engine, _ = start()
    got = [outcome(engine, one) for one in requests]
    assert got == [outcome(plain, one) for one in requests]
    n_failed = sum(isinstance(one, str) for one in got)
    assert 0 < n_failed < len(got)
    assert metric(engine, "lanewise_step_errors_total") == n_failed
    assert metric(engine, "lanewise_kv_blocks_used") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_without_speculation(start, kind):
    requests = [
        request("abcab" * (2 + i), choice=i % 2, **{"seed": i, **KINDS[kind]}) for i in range(6)
    ]
    plain, _ = start(max_draft=0)
    engine, _ = start()
    assert answers(engine, *requests) == answers(plain, *requests)
    run, guessed, came = drafts(engine)
    assert 0 < came < guessed
    assert run <= guessed
    assert metric(engine, "lanewise_kv_blocks_used") == 0


def test_answers_are_the_same_in_a_crowd_that_is_preempted(start):
    requests = [request("abcab" * (2 + 3 * i), seed=i, max_tokens=70) for i in range(8)]
    plain, _ = start(max_draft=0)
    alone = [answers(plain, one)[0] for one in requests]
    crowded, _ = start(n_blocks=14, max_model_len=200, max_step_tokens=13, max_step_logits=12)
    together = answers(crowded, *requests)
    assert [[o.sampled for o in one] for one in together] == [
        [o.sampled for o in one] for one in alone
    ]
    assert metric(crowded, "vllm:num_preemptions_total") > 0
    assert drafts(crowded)[2] > 0
    assert metric(crowded, "lanewise_kv_blocks_used") == 0
    assert metric(crowded, "vllm:generation_tokens_total") == 8 * 70


def test_what_was_guessed_wrong_is_not_found_in_the_prefix_cache(start):
    plain, _ = start(max_draft=0, prefix_cache=False)
    engine, _ = start()
    [first] = answers(engine, request(max_tokens=100))
    text = "abcab" * 4 + bytes(one.sampled.token for one in first).decode()
    # Its own answer as a prompt: all of it is found, and what follows is as if computed.
    [again] = answers(engine, request(text, max_tokens=30, seed=3))
    assert again[0].cached_tokens == len(text) - 1
    [fresh] = answers(plain, request(text, max_tokens=30, seed=3))
    assert [one.sampled for one in again] == [one.sampled for one in fresh]


def test_guesses_are_counted_and_save_steps(start):
    engine, runner = start()
    # Only one token may be written: every guess comes true once there is something to repeat.
    answers(engine, request("aaaa", allowed_token_ids=(97,), max_tokens=50))
    run, guessed, came = drafts(engine)
    assert guessed == came
    assert len(runner.batches) < 15
    assert len(runner.batches) + came == 50
    assert metric(engine, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position="0") == run
    assert metric(engine, "vllm:iteration_tokens_total_sum") == 4 + 50 - 1
    assert metric(engine, "vllm:inter_token_latency_seconds_count") == 49


def test_an_answer_that_is_expected_takes_few_steps_and_is_the_same(start):
    free = {"allowed_token_ids": None, "temperature": 1.0}
    engine, runner = start()
    [plain] = answers(engine, request(**free))
    said = [one.sampled.token for one in plain]
    n_plain = len(runner.batches)
    assert drafts(engine)[2] < 20

    def steps(expected):
        engine, runner = start()
        [same] = answers(engine, replace(request(**free), expected=expected))
        assert same == plain
        assert metric(engine, "lanewise_kv_blocks_used") == 0
        return len(runner.batches)

    assert steps(said) < n_plain / 3
    # One word is another, and so is what comes after the end.
    assert steps([*said[:20], 1, 2, *said[22:50], *said[:9]]) < n_plain / 2
    assert steps([1, 2, 3] * 30) <= n_plain
    assert steps([5]) <= n_plain


def test_a_request_may_have_fewer_guesses_or_none(start):
    engine, _ = start()
    answers(engine, request(max_draft=0))
    assert drafts(engine) == (0, 0, 0)
    answers(engine, request(max_draft=1))
    run, guessed, _ = drafts(engine)
    assert run == guessed > 0


def test_guesses_do_not_stretch_steps_beyond_the_target(start, monkeypatch):
    monkeypatch.setattr(Pacer, "spare_tokens", lambda *_, **__: 3)
    engine, runner = start(itl_target_s=0.05)
    loops = [request("aaaa", allowed_token_ids=(97,), max_tokens=40) for _ in range(2)]
    answers(engine, *loops)
    rows = [len(batch.token_ids) for batch in runner.batches[4:]]
    assert max(rows) == 2 + 3  # of 2 + 12 without a target
    assert metric(engine, "vllm:generation_tokens_total") == 80


def test_the_last_token_is_never_guessed_beyond(start):
    for max_tokens in range(1, 9):
        engine, runner = start()
        one = request("a" * 20, allowed_token_ids=(97,), max_tokens=max_tokens)
        [outputs] = answers(engine, one)
        assert len(outputs) == max_tokens
        assert [output.finish_reason for output in outputs] == [None] * (max_tokens - 1) + [
            "length"
        ]
        assert sum(len(batch.token_ids) for batch in runner.batches) == 20 + max_tokens - 1


def guesser(text: str, max_tokens: int = 50) -> tuple[Guesser, Scheduled]:
    one = request(text, max_tokens=max_tokens)
    return Guesser(PromptLookup(one.prompt, max_tokens), 5), Scheduled(one)


def test_a_guess_is_what_followed_before():
    one, sequence = guesser("the cat sat. the c")
    assert bytes(one.guess(sequence).tokens) == b"at sa"


def test_a_text_that_goes_round_is_guessed_to_go_on():
    one, sequence = guesser("xabab")
    assert bytes(one.guess(sequence).tokens) == b"ababa"


def test_guesses_that_fail_become_unlikely_and_are_tried_again_later():
    one, sequence = guesser("xabyab")
    first = one.guess(sequence).chances[0]
    for _ in range(30):
        one.learn(one.guess(sequence), 1, 0)
    failed = one.guess(sequence).chances[0]
    assert failed < first / 10
    for _ in range(1000):
        one.pass_over(one.guess(sequence).kinds[0])
    assert one.guess(sequence).chances[0] > first / 2


def test_what_a_drafter_was_worth_is_known_to_the_next_sequence():
    """And tried again in time, also where all sequences are short."""
    speculator = Speculator(5, draft=None)
    wrong = Guess([1], [DRAFTED], [0.7])

    def next_one():
        return speculator.guessers([request("abc", max_tokens=50)])[0]

    first = next_one().chance(DRAFTED)
    for _ in range(20):
        one = next_one()
        for _ in range(5):
            one.learn(wrong, 1, 0)
    assert next_one().chance(DRAFTED) < first / 10
    for _ in range(60):
        one = next_one()
        for _ in range(20):
            one.pass_over(DRAFTED)
    assert next_one().chance(DRAFTED) > 0.9 * first


def test_guesses_that_come_true_become_likely():
    one, sequence = guesser("xabyab")
    for _ in range(60):
        one.learn(one.guess(sequence), 5, 5)
    assert one.guess(sequence).chances[-1] > 0.95


def test_costs_are_learnt_from_steps_and_one_disturbed_step_changes_little():
    costs = RowCosts()
    assert not costs.are_known
    costs.note(1, 0.020)
    for _ in range(80):
        for rows in (1, 2, 4, 8, 16, 32):
            costs.note(rows, 0.020 if rows <= 8 else 0.0025 * rows)
    assert costs.seconds(1) == pytest.approx(0.020, rel=0.05)
    assert costs.seconds(6) == pytest.approx(0.020, rel=0.05)
    assert costs.seconds(32) == pytest.approx(0.080, rel=0.05)
    costs.note(1, 5.0)
    assert costs.seconds(1) < 0.0215


def test_what_was_never_measured_follows_from_what_was():
    """The first step touches the model's pages: what it took says nothing of steps of one row."""
    costs = RowCosts()
    costs.note(3, 2.0)
    for _ in range(4):
        costs.note(40, 0.112)
    assert costs.seconds(1) == pytest.approx(0.034, rel=0.05)  # (16 + 1) / (16 + 40) of it
    assert costs.seconds(64) == pytest.approx(0.160, rel=0.05)
    costs.note(2, 0.001)
    assert 0 < costs.seconds(1) < 0.002


def test_all_costs_follow_a_machine_that_becomes_slower():
    """Else rows that were last measured in a better time look cheap, and guesses on them."""
    costs = RowCosts()
    for slowness in (1, 2):
        for _ in range(40):
            costs.note(64, slowness * 0.250)
            if slowness == 1:
                costs.note(96, 0.375)
    assert costs.seconds(64) == pytest.approx(0.500, rel=0.02)
    assert costs.seconds(96) == pytest.approx(0.750, rel=0.2)


def test_time_of_the_draft_model_is_taken_off_its_own_step_only():
    """Off a later step it would leave less than nothing, of which no cost can be learnt."""
    speculator = speculation.Speculator(4)
    speculator.costs.note(8, 0.040)
    speculator.learn(speculation.Guesses(draft_s=0.060), 8, 0.100)
    speculator.learn(speculation.Guesses(), 8, 0.040)
    assert speculator.costs.seconds(8) == pytest.approx(0.040)


class FixedCosts(RowCosts):
    """A pass over the weights takes as long as the arithmetic of eight rows."""

    are_known = True

    def seconds(self, rows: int) -> float:
        return max(8.0, rows)


@pytest.mark.parametrize(("others", "expected"), [(0, 6), (4, 3), (7, 0), (40, 0)])
def test_guesses_fill_the_rows_that_cost_nothing(start, monkeypatch, others, expected):
    """Beside ``others`` in the step, guesses of a chance of 0.8 each are worth so many rows."""
    chances = (0.8,) * len(speculation.FIRST_CHANCES)
    monkeypatch.setattr(speculation, "FIRST_CHANCES", chances)
    scheduler = Scheduler(SchedulerConfig(64, 512, 512, 6400), BlockPool(200))
    speculator = speculation.Speculator(6)
    speculator.costs = FixedCosts()
    repeats = request("abcabcabc")
    everyone = [Scheduled(repeats), *(Scheduled(request(chr(100 + i) * 3)) for i in range(others))]
    for one in everyone:
        scheduler.add(one)
    scheduler.record(scheduler.schedule(), [[Sampled(97, 0.0)]] * len(everyone))
    [own] = speculator.guessers([repeats])
    step = scheduler.schedule()
    speculator.add_guesses(step, scheduler, {everyone[0]: own}.get)
    drafts = {turn.sequence: len(turn.draft) for turn in step.turns}
    assert drafts == dict.fromkeys(everyone, 0) | {everyone[0]: expected}


@pytest.mark.parametrize(("stretch", "rows", "expected"), [(0.0, 0, 6), (0.1, 3, 4)])
def test_the_background_takes_no_guesses_from_others(start, monkeypatch, stretch, rows, expected):
    """What it may have of a step is no limit for them, and its own rows have none."""
    chances = (0.8,) * len(speculation.FIRST_CHANCES)
    monkeypatch.setattr(speculation, "FIRST_CHANCES", chances)
    config = SchedulerConfig(64, 512, 512, 6400, background_stretch=stretch)
    scheduler = Scheduler(config, BlockPool(200))
    speculator = speculation.Speculator(6)
    speculator.costs = FixedCosts()
    later = [Scheduled(replace(request("abcabcabc"), priority=BACKGROUND)) for _ in range(5)]
    for one in later:
        scheduler.add(one)
    scheduler.record(scheduler.schedule(), [[Sampled(97, 0.0)]] * len(later))
    own = Scheduled(request("abcabcabc"))
    scheduler.add(own)
    step = scheduler.schedule()
    scheduler.record(step, [[Sampled(97, 0.0)]] * len(step.turns))
    step = scheduler.schedule()
    everyone = [own, *later]
    guessers = speculator.guessers([one.request for one in everyone])
    speculator.add_guesses(step, scheduler, dict(zip(everyone, guessers, strict=True)).get)
    assert (step.background_rows, step.n_counted) == (rows, 1)
    drafts = {turn.sequence: len(turn.draft) for turn in step.turns if turn.draft}
    assert drafts == {own: expected}


@pytest.mark.parametrize(("wait_s", "wants"), [(0.003, True), (0.03, False)])
def test_many_sequences_wait_only_for_guesses_that_gain_more(start, wait_s, wants):
    """Of twelve, each repeats itself for sure; a pass over the weights takes 14 ms."""
    costs = RowCosts()
    costs.seconds = lambda rows: 1e-3 * max(14, rows)
    costs.note(1, 1.0)
    scheduler = Scheduler(SchedulerConfig(64, 512, 512, 6400), BlockPool(200))
    speculator = speculation.Speculator(6)
    speculator.costs = costs
    for _ in range(50):
        speculator.note_wait(12, wait_s)
    everyone = [Scheduled(request("abcabcabc")) for _ in range(12)]
    guessers = dict(
        zip(everyone, speculator.guessers([one.request for one in everyone]), strict=True)
    )
    for one in everyone:
        scheduler.add(one)
    scheduler.record(scheduler.schedule(), [[Sampled(97, 0.0)]] * len(everyone))
    for one in everyone:
        for _ in range(40):
            guessers[one].learn(guessers[one].guess(one), 6, 6)
    step = scheduler.schedule()
    for _ in range(2):  # eight are searched at a time
        assert step.n_tokens == 12
        speculator.search(step, guessers.get)
    assert speculator.wants(step, guessers.get) == wants
    speculator.add_guesses(step, scheduler, guessers.get)
    assert any(turn.draft for turn in step.turns) == wants
