"""Scheduling without a model: budgets, order, preemption, and no sequence forgotten."""

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.engine.block_pool import BlockPool, blocks_for
from lanewise.engine.pacing import Pacer
from lanewise.engine.sampling import SamplingParams
from lanewise.engine.scheduler import Scheduler, SchedulerConfig, Step, work_of
from lanewise.engine.sequence import GenerationRequest, Sequence, State
from lanewise.runtime import BLOCK_TOKENS

unlike = itertools.count(1)


def sequence(
    n_prompt: int,
    max_tokens: int = 100,
    scoring: bool = False,
    text: int | None = None,
    **request: int,
) -> Sequence:
    """Its prompt is the beginning of a text; without ``text``, of one that no other has."""
    params = SamplingParams(seed=0, max_tokens=max_tokens, prompt_logprobs=0 if scoring else None)
    first = 1000 * (next(unlike) if text is None else -text) % 2**32
    return Sequence(GenerationRequest(list(range(first, first + n_prompt)), params, **request))


def scheduler(
    n_blocks: int = 100, max_seqs: int = 4, max_step_tokens: int = 16, max_step_logits: int = 16
) -> Scheduler:
    config = SchedulerConfig(max_seqs, max_step_tokens, max_step_logits)
    return Scheduler(config, BlockPool(n_blocks))


def run(scheduler: Scheduler) -> list[int]:
    """One step with an imaginary model; returns the numbers of tokens in the step's order."""
    step = scheduler.schedule()
    complete(scheduler, step)
    return [turn.count for turn in step.turns]


def counts(step: Step) -> dict[Sequence, int]:
    return {turn.sequence: turn.count for turn in step.turns}


def complete(scheduler: Scheduler, step: Step, accepted: Iterable[int] = ()) -> list[Sequence]:
    """The sequences that end with this step; of drafts, so many tokens come true."""
    drawing = {turn.sequence for turn in step.turns if turn.draws}
    numbers = iter(accepted)
    for turn in step.turns:
        if turn.draft:
            turn.accept(turn.draft[: next(numbers, 0)])
    scheduler.complete(step)
    for one in drawing:
        one.tokens.append(one.request.choice)
    ran = [turn.sequence for turn in step.turns]
    ended = [s for s in ran if s.uncached_len == 0 or (s in drawing and not s.draws)]
    for one in ended:
        scheduler.finish(one)
    return ended


def step_that_preempts(scheduler: Scheduler) -> Step:
    """The first step, of those to come, that takes blocks from a sequence; not run yet."""
    step = scheduler.schedule()
    while not step.preempted:
        complete(scheduler, step)
        step = scheduler.schedule()
    return step


def test_running_sequence_keeps_decoding_while_a_prompt_is_prefilled():
    s = scheduler()
    s.add(sequence(4))
    run(s)
    s.add(sequence(30))
    assert run(s) == [1, 15]
    assert run(s) == [1, 15]
    assert run(s) == [1, 1]


def test_prompts_are_prefilled_in_the_order_they_came():
    s = scheduler()
    first, second = sequence(20), sequence(20)
    s.add(first)
    s.add(second)
    assert counts(s.schedule()) == {first: 16}
    step = s.schedule()
    complete(s, step)
    assert run(s) == [4, 12]


def test_more_important_prompts_pass_those_that_are_being_prefilled():
    s = scheduler()
    first, second, urgent = sequence(40), sequence(20), sequence(20, priority=-1)
    s.add(first)
    s.add(second)
    assert run(s) == [16]
    s.add(urgent)
    assert counts(s.schedule()) == {urgent: 16}
    assert s.running == [urgent, first]


def test_least_important_sequence_is_preempted_though_it_is_older():
    s = scheduler(n_blocks=5)
    old, urgent = sequence(63, max_tokens=60, priority=5), sequence(33, max_tokens=60, priority=1)
    s.add(old)
    for _ in range(2):
        run(s)
    s.add(urgent)
    assert step_that_preempts(s).preempted == [old]
    assert urgent.state is State.RUNNING


def test_decodes_are_kept_from_waiting_for_a_long_prompt():
    pacer = Pacer(target_s=0.05)
    config = SchedulerConfig(8, 512, 16)
    s = Scheduler(config, BlockPool(100), pacer)

    def seconds(step: Step) -> float:
        return 0.02 + 0.001 * sum(turn.count for turn in step.turns)

    def run_paced() -> list[int]:
        step = s.schedule()
        pacer.cost.learn(work_of(step.turns), seconds(step))
        complete(s, step)
        return [turn.count for turn in step.turns]

    s.add(sequence(300))
    assert run_paced() == [300]  # nobody waits for a token
    for n in (2, 5, 9):
        s.add(sequence(n))
        run_paced()
    s.add(sequence(1000))
    steps = [run_paced() for _ in range(20)]
    assert all(step[:4] == [1, 1, 1, 1] for step in steps)
    # 20 ms and 1 ms for each row: up to 25 rows end within nine tenths of 50 ms.
    assert all(20 <= sum(step) <= 28 for step in steps[5:])


def test_no_more_sequences_run_than_allowed():
    s = scheduler(max_seqs=2)
    for _ in range(3):
        s.add(sequence(1))
    assert run(s) == [1, 1]
    assert len(s.waiting) == 1


def test_scoring_a_prompt_takes_no_more_rows_of_logits_than_there_are():
    s = scheduler(max_step_tokens=64, max_step_logits=8)
    one = sequence(20, max_tokens=1, scoring=True)
    s.add(one)
    scored = []
    while s.running or s.waiting:
        step = s.schedule()
        (turn,) = step.turns
        rows = [*turn.scored] + [one.n_prompt - 1] * turn.draws
        assert len(rows) <= 8
        scored += rows
        complete(s, step)
    assert scored == list(range(20))


def test_newest_sequence_is_preempted_and_comes_back_first():
    s = scheduler(n_blocks=4)
    old, new, later = sequence(63, max_tokens=60), sequence(30), sequence(60)
    s.add(old)
    s.add(new)
    s.add(later)
    step = step_that_preempts(s)
    assert step.preempted == [new]
    assert list(s.waiting) == [new, later]
    assert old.state is State.RUNNING
    while new.state is State.WAITING:
        complete(s, step)
        step = s.schedule()
    assert old.state is State.FINISHED
    assert counts(step)[new] == 16  # its prompt and its answer so far, from the start again
    assert len(new.tokens) > new.n_prompt


def test_sequence_that_cannot_be_admitted_waits_until_there_is_room():
    s = scheduler(n_blocks=4, max_step_tokens=200)
    first, second = sequence(100), sequence(100)
    s.add(first)
    s.add(second)
    run(s)
    assert (first.state, second.state) == (State.RUNNING, State.WAITING)
    s.finish(first)
    run(s)
    assert second.state is State.RUNNING


def test_limits_that_would_starve_a_running_sequence_are_refused():
    with pytest.raises(ValueError, match="max_step_tokens is 3; accepted: at least max_seqs = 4"):
        SchedulerConfig(max_seqs=4, max_step_tokens=3, max_step_logits=4)


REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 150),  # tokens of the prompt
        st.integers(0, 60),  # max_tokens
        st.booleans(),  # score the prompt
        st.integers(0, 40),  # the step it comes before
        st.none() | st.integers(0, 60),  # the step it is cancelled before, if it has come
        st.none() | st.integers(1, 2),  # whose beginning it shares
        st.integers(-1, 1),  # priority
        st.integers(0, 2),  # client
    ),
    min_size=1,
    max_size=12,
)
# What is guessed for the decodes of one step after the other, and how much of it comes true.
GUESSES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    requests=REQUESTS,
    n_blocks=st.integers(7, 20),  # 7 blocks hold the longest sequence
    max_seqs=st.integers(1, 6),
    spare_tokens=st.integers(0, 60),
    spare_logits=st.integers(0, 20),
    target_ms=st.none() | st.integers(1, 60),
    guesses=GUESSES,
)
def test_every_sequence_ends_and_no_block_is_lost(
    requests, n_blocks, max_seqs, spare_tokens, spare_logits, target_ms, guesses
):
    pool = BlockPool(n_blocks)
    config = SchedulerConfig(max_seqs, max_seqs + spare_tokens, max_seqs + spare_logits)
    pacer = None if target_ms is None else Pacer(target_ms / 1000)
    s = Scheduler(config, pool, pacer)
    everyone = [
        sequence(*request[:3], text=request[5], priority=request[6], client=request[7])
        for request in requests
    ]
    cache: dict[tuple[int, int], list[int]] = {}  # block, place: all tokens that went into it
    cancelled, ended = set(), set()
    scored: dict[Sequence, list[int]] = {one: [] for one in everyone}
    last_arrival = max(request[3] for request in requests)
    for now in range(20_000):
        for one, (*_, arrival, cancel, _, _, _) in zip(everyone, requests, strict=True):
            if now == arrival:
                s.add(one)
            if now == cancel and now >= arrival and one not in ended:
                s.finish(one)
                cancelled.add(one)
        if now > last_arrival and not s.running and not s.waiting:
            break
        step = s.schedule()
        accepted = add_drafts(step, s, guesses)
        check_step(step, s, config, pool)
        if pacer is not None and step.turns:
            work = work_of(step.turns)
            pacer.cost.learn(work, 0.01 + 0.001 * work.rows)
        check_cache(step, cache)
        if s.running or s.waiting:
            assert step.turns, "sequences are there, nothing runs"
        for turn in step.turns:
            scored[turn.sequence] += turn.scored
        ended.update(complete(s, step, accepted))
    assert ended | cancelled == set(everyone)
    assert not ended & cancelled
    assert pool.n_free == n_blocks
    for one in ended:
        assert one.n_output == one.request.params.max_tokens
        if one.request.params.prompt_logprobs is not None:
            assert scored[one] == list(range(one.n_prompt - 1))


def add_drafts(step: Step, s: Scheduler, guesses: list[tuple[int, int]]) -> list[int]:
    """Guess behind decodes, up to the last token but one; returns how many tokens come true."""
    n_free, accepted = s._pool.n_free, []
    for turn in step.turns:
        one = turn.sequence
        if turn.draws and turn.count == 1 and guesses:
            length, n_true = guesses[len(one.tokens) % len(guesses)]
            wanted = min(length, one.request.params.max_tokens - one.n_output - 1)
            n_true = min(n_true, wanted)
            wrong = one.request.choice + 1
            draft = [one.request.choice] * n_true + [wrong] * (wanted - n_true)
            turn.draft = draft[: s.reserve_draft(step, turn, wanted)]
            assert len(turn.draft) <= wanted
            if turn.draft:
                accepted.append(min(n_true, len(turn.draft)))
    if s._pool.n_free < n_free:
        assert s._pool.n_free >= len(s.running), "a guess took what others soon need"
    return accepted


def check_step(step: Step, s: Scheduler, config: SchedulerConfig, pool: BlockPool) -> None:
    counts_of = counts(step)
    assert len(counts_of) == len(step.turns)
    n_guessed = sum(len(turn.draft) for turn in step.turns)
    assert sum(counts_of.values()) + n_guessed <= config.max_step_tokens
    logits = sum(len(turn.scored) + turn.draws + len(turn.draft) for turn in step.turns)
    assert logits <= config.max_step_logits
    assert len(s.running) <= config.max_seqs
    assert len({one.table_row for one in s.running}) == len(s.running)
    owned = [block for one in s.running for block in one.blocks]
    assert len(set(owned)) == pool.n_used
    for turn in step.turns:
        one, count = turn.sequence, turn.count
        assert one.state is State.RUNNING
        assert 0 < count <= one.uncached_len
        assert len(one.blocks) >= blocks_for(one.n_cached + count + len(turn.draft))
    for one in s.running:
        assert s.block_tables[one.table_row, : len(one.blocks)].tolist() == one.blocks
        if one.is_decoding:
            assert counts_of[one] == 1, "a decode was left out"
    assert all(not len(one.blocks) and not one.n_cached for one in s.waiting)


def check_cache(step: Step, cache: dict[tuple[int, int], list[int]]) -> None:
    """What a sequence finds in its blocks is what it would have computed itself."""
    for source, target in step.copies:
        for i in range(BLOCK_TOKENS):
            cache[target, i] = cache.get((source, i), [])
    for turn in step.turns:
        one = turn.sequence
        tokens = one.tokens + turn.draft
        for i in range(one.n_cached + turn.count + len(turn.draft)):
            place = one.blocks[i // BLOCK_TOKENS], i % BLOCK_TOKENS
            if i < one.n_cached:
                assert cache[place] == tokens[: i + 1]
            else:
                cache[place] = tokens[: i + 1]


def test_a_prompt_is_computed_behind_what_the_cache_holds_of_it():
    s = scheduler(max_step_tokens=200)
    first, longer = sequence(100, 1, text=1), sequence(150, 1, text=1)
    s.add(first)
    assert run(s) == [100]
    assert first.state is State.FINISHED
    s.add(longer)
    step = s.schedule()
    assert (longer.n_reused, counts(step)) == (100, {longer: 50})
    assert step.admitted == [longer]
    assert [target for _, target in step.copies] == longer.blocks[3:4]


def test_the_last_token_of_a_prompt_is_always_computed():
    s = scheduler(max_step_tokens=200)
    for _ in range(2):
        again = sequence(64, 1, text=1)
        s.add(again)
        ran = run(s)
    assert (ran, again.n_reused) == ([1], 63)


def test_what_two_texts_have_in_common_of_a_block_is_copied():
    s = scheduler(max_step_tokens=200)
    first, parting = sequence(70, 8, text=1), sequence(70, 1, text=1)
    parting.tokens[45:] = sequence(25).tokens
    s.add(first)
    run(s)
    s.add(parting)
    step = s.schedule()  # while the first is still running
    assert (parting.n_reused, counts(step)) == (45, {first: 1, parting: 25})
    assert step.copies == [(first.blocks[1], parting.blocks[1])]
    assert parting.blocks[0] == first.blocks[0]


def test_an_answer_is_found_by_who_goes_on_with_it():
    s = scheduler(max_step_tokens=200)
    first = sequence(40, 8, text=1)
    s.add(first)
    while first.state is not State.FINISHED:
        run(s)
    params = SamplingParams(seed=0, max_tokens=1)
    turn_two = Sequence(GenerationRequest([*first.tokens, 7, 7, 7], params))
    s.add(turn_two)
    s.schedule()
    assert turn_two.n_reused == 47  # the last token drawn was never given to the model


def test_what_comes_together_is_computed_once():
    s = scheduler(max_step_tokens=40, max_seqs=4)
    alike = [sequence(100, 1, text=1) for _ in range(3)]
    other = sequence(10, 1)
    for one in (*alike, other):
        s.add(one)
    assert run(s) == [40]  # those like the first wait for it
    assert list(s.waiting) == [*alike[1:], other]
    assert run(s) == [40]
    assert run(s) == [20, 10]
    assert run(s) == [1, 1]
    assert [one.n_reused for one in alike] == [0, 99, 99]


def test_who_waits_for_a_prefix_lets_others_pass_and_goes_on_when_it_is_lost():
    s = scheduler(max_step_tokens=64)
    first, like_it, other = sequence(100, 1, text=1), sequence(100, 1, text=1), sequence(8, 1)
    for one in (first, like_it, other):
        s.add(one)
    for _ in range(3):
        run(s)
    assert (other.state, like_it.state) == (State.FINISHED, State.FINISHED)
    assert like_it.n_reused == 99
    again, like_again = sequence(100, 1, text=2), sequence(100, 1, text=2)
    s.add(again)
    s.add(like_again)
    run(s)
    s.finish(again)
    run(s)
    assert (like_again.state, like_again.n_reused) == (State.FINISHED, 64)


def test_neither_salts_nor_texts_nor_scored_prompts_share():
    s = scheduler(max_step_tokens=200, max_step_logits=200)
    params = SamplingParams(seed=0, max_tokens=1)
    salted = Sequence(GenerationRequest(list(sequence(64, text=1).tokens), params, 0, "mine"))
    other = sequence(64, 1, text=1)
    other.tokens[0] += 1
    for one in (sequence(64, 1, text=1), salted, other, sequence(64, 1, text=1, scoring=True)):
        s.add(one)
        run(s)
        assert one.n_reused == 0
    again = Sequence(GenerationRequest(list(salted.tokens[:64]), params, 0, "mine"))
    s.add(again)
    run(s)
    assert again.n_reused == 63


def test_without_the_cache_nothing_is_shared():
    config = SchedulerConfig(4, 200, 16, prefix_cache=False)
    s = Scheduler(config, BlockPool(100))
    alike = [sequence(100, 1, text=1) for _ in range(2)]
    for one in alike:
        s.add(one)
    assert run(s) == [100, 100]


def test_a_preempted_sequence_goes_on_behind_its_own_blocks():
    s = scheduler(n_blocks=5, max_step_tokens=200)
    old, new = sequence(60, 68), sequence(60, 20)
    s.add(old)
    s.add(new)
    step = step_that_preempts(s)
    assert step.preempted == [new]
    s.finish(old)
    step = s.schedule()
    assert step.admitted == [new]
    assert (new.n_cached >= 32, new.n_reused) == (True, 0)
