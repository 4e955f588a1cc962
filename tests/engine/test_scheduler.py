"""Scheduling without a model: budgets, order, preemption, and no sequence forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.engine.base.block_pool import NO_BLOCK, BlockPool, blocks_for
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.base.step import Step
from lanewise.engine.base.window import Windows
from lanewise.engine.scheduling.pacing import Pacer
from lanewise.engine.scheduling.scheduler import STEPS_OF_RIGHT, Scheduler
from lanewise.engine.scheduling.waiting import OUTPUT_WEIGHT
from lanewise.runtime import BLOCK_TOKENS, Sampled
from scheduling import complete, counts, run, run_to_end, scheduler, sequence, step_that_preempts


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
    first, second, urgent = sequence(40), sequence(40), sequence(20, priority=-1)
    s.add(first)
    s.add(second)
    assert run(s) == [16]
    s.add(urgent)
    assert counts(s.schedule()) == {urgent: 16}
    assert s.running == [urgent, first]


@pytest.mark.parametrize("client", [0, 1])
def test_a_short_prompt_is_in_the_next_step_though_long_ones_came_first(client):
    s = scheduler(n_blocks=400)
    for _ in range(2):
        s.add(sequence(1000, scoring=True))
    for _ in range(3):
        assert run(s) == [16]
    short = sequence(5, client=client)
    s.add(short)
    assert counts(s.schedule())[short] == 5


@pytest.mark.parametrize("same_client", [True, False])
def test_a_request_with_all_places_gives_one_up_and_goes_on_with_its_answers(same_client):
    s = scheduler(n_blocks=100, max_step_tokens=64, max_seqs=4)
    many = [sequence(20, max_tokens=50) for _ in range(8)]
    for one in many:
        one.group = many[0].group
        s.add(one)
    run(s)
    other, another = (sequence(5, client=0 if same_client else 1) for _ in range(2))
    s.add(other)
    step = s.schedule()
    assert (step.admitted, step.preempted) == ([other], [many[3]])
    assert counts(step) == dict.fromkeys(many[:3], 1) | {other: 5}
    complete(s, step)
    s.add(another)
    step = s.schedule()
    assert (step.admitted, step.preempted) == ([another], [many[2]])
    complete(s, step)
    s.add(sequence(5, client=0 if same_client else 1))
    step = s.schedule()
    # Two clients have two places each; of one client, a request gives up all but its last.
    assert step.preempted == ([many[1]] if same_client else [])
    complete(s, step)
    while s.running or s.waiting:
        run(s)
    assert all(one.n_output == 50 for one in many)


def test_blocks_of_who_holds_most_are_given_up_for_another_client():
    s = scheduler(n_blocks=40, max_step_tokens=1000, max_seqs=8)
    long = [sequence(300, client=1) for _ in range(4)]
    for one in long:
        s.add(one)
    run(s)
    assert s.running == long[:3]
    other = sequence(290, client=2)
    s.add(other)
    step = s.schedule()
    assert (step.admitted, step.preempted) == ([other], [long[2]])
    assert other in counts(step)


def test_what_is_computed_again_counts_once():
    s = scheduler(n_blocks=6, max_step_tokens=64)
    clients = {1: sequence(40, max_tokens=80, client=1), 2: sequence(40, max_tokens=80, client=2)}
    for one in clients.values():
        s.add(one)
    while s.running or s.waiting:
        run(s)
    assert max(one.n_preempted for one in clients.values()) > 0
    for client, one in clients.items():
        assert s._shares.of(client) == one.n_prompt + OUTPUT_WEIGHT * one.n_output


def test_a_right_that_comes_with_time_is_found_without_anybody_coming_or_leaving():
    s = scheduler(max_step_tokens=256, max_seqs=2)
    run_to_end(s, sequence(200, max_tokens=1, client=2))  # it has got more than the other now
    holders = [sequence(5, max_tokens=100, client=1) for _ in range(2)]
    for one in holders:
        s.add(one)
    run(s)
    waiting = sequence(5, client=2)
    s.add(waiting)
    run(s)
    assert waiting.state is State.WAITING
    n_steps = 0
    while waiting.state is State.WAITING:
        run(s)
        n_steps += 1
    # Four shares a step: after 48 of them the other client has got more.
    assert 40 < n_steps <= 48 + 2 * STEPS_OF_RIGHT
    assert min(one.n_output for one in holders) < 100
    assert State.WAITING in [one.state for one in holders]


def test_nobody_gives_way_while_a_step_runs():
    s = scheduler(n_blocks=100, max_step_tokens=64, max_seqs=2)
    many = [sequence(20) for _ in range(2)]
    for one in many:
        one.group = many[0].group
        s.add(one)
    begun = s.schedule()
    s.begin(begun)
    assert s.can_plan_ahead
    s.add(sequence(5))
    assert not s.can_plan_ahead  # the next step is planned when none runs
    assert s.schedule().preempted == []
    s.record(begun, [[Sampled(0, 0.0)]] * 2)
    assert s.schedule().preempted == [many[1]]


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
    config = SchedulerConfig(8, 512, 16, 3200)
    s = Scheduler(config, BlockPool(100), pacer)

    def seconds(step: Step) -> float:
        return 0.02 + 0.001 * sum(turn.count for turn in step.turns)

    def run_paced() -> list[int]:
        step = s.schedule()
        pacer.cost.learn(s.work_of(step.turns), seconds(step))
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
        rows = [*turn.scored] + [one.n_prompt - 1] * turn.ends_in_draw
        assert len(rows) <= 8
        scored += rows
        complete(s, step)
    assert scored == list(range(20))


def test_newest_sequence_is_preempted_and_comes_back_first():
    s = scheduler(n_blocks=4)
    old, new, later = sequence(63, max_tokens=60), sequence(30), sequence(60)
    for one in (old, new, later):
        s.add(one)
        run(s)
    step = step_that_preempts(s)
    assert step.preempted == [new]
    assert set(s.waiting) == {new, later}
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
        SchedulerConfig(max_seqs=4, max_step_tokens=3, max_step_logits=4, max_model_len=100)


LONGEST = 210
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, LONGEST - 60),  # tokens of the prompt
        st.integers(0, 60),  # max_tokens
        st.sampled_from([0, 0, 1, 40, 90]),  # score the prompt from this token on
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
    spare_blocks=st.integers(0, 13),  # over what the longest sequence needs
    max_seqs=st.integers(1, 6),
    spare_tokens=st.integers(0, 60),
    spare_logits=st.integers(0, 20),
    target_ms=st.none() | st.integers(1, 60),
    guesses=GUESSES,
    windows=st.lists(st.none() | st.integers(1, 120), min_size=1, max_size=3),
)
def test_every_sequence_ends_and_no_block_is_lost(
    requests, spare_blocks, max_seqs, spare_tokens, spare_logits, target_ms, guesses, windows
):
    config = SchedulerConfig(
        *(max_seqs, max_seqs + spare_tokens, max_seqs + spare_logits),
        max_model_len=LONGEST,
        windows=tuple(windows),
    )
    pool = BlockPool(config.kv_windows.most_blocks(LONGEST) + spare_blocks)
    pacer = None if target_ms is None else Pacer(target_ms / 1000)
    s = Scheduler(config, pool, pacer)
    everyone = [
        sequence(*request[:3], text=request[5], priority=request[6], client=request[7])
        for request in requests
    ]
    # Block, place: the group of layers and all tokens that went into it.
    cache: dict[tuple[int, int], tuple[int, list[int]]] = {}
    cancelled, ended = set(), set()
    scored: dict[Scheduled, list[int]] = {one: [] for one in everyone}
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
            work = s.work_of(step.turns)
            pacer.cost.learn(work, 0.01 + 0.001 * work.rows)
        check_cache(s, step, cache, config.kv_windows)
        if s.running or s.waiting:
            assert step.turns, "sequences are there, nothing runs"
        for turn in step.turns:
            scored[turn.sequence] += turn.scored
        ended.update(complete(s, step, accepted))
    assert ended | cancelled == set(everyone)
    assert not ended & cancelled
    assert pool.n_free == pool.n_blocks
    for one in ended:
        assert one.n_output == one.request.params.max_tokens
        if one.request.params.prompt_logprobs is not None:
            first = one.request.params.score_from - 1
            assert scored[one] == list(range(first, one.n_prompt - 1))


def add_drafts(step: Step, s: Scheduler, guesses: list[tuple[int, int]]) -> list[int]:
    """Guess behind decodes, up to the last token but one; returns how many tokens come true."""
    n_free, accepted = s._pool.n_free, []
    for turn in step.turns:
        one = turn.sequence
        if turn.ends_in_draw and turn.count == 1 and guesses:
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
    logits = sum(len(turn.scored) + turn.ends_in_draw + len(turn.draft) for turn in step.turns)
    assert logits <= config.max_step_logits
    assert len(s.running) <= config.max_seqs
    assert len({one.table_row for one in s.running}) == len(s.running)
    tables = [table for one in s.running for table in one.tables]
    owned = [block for table in tables for block in table.blocks[table.n_dropped :]]
    assert len(set(owned)) == pool.n_used
    for turn in step.turns:
        one, count = turn.sequence, turn.count
        assert one.state is State.RUNNING
        assert 0 < count <= one.uncached_len
        for table in one.tables:
            assert len(table.blocks) >= blocks_for(one.n_cached + count + len(turn.draft))
    for one in s.running:
        longest = one.n_prompt + one.request.params.max_tokens
        for group, (table, window) in enumerate(zip(one.tables, config.kv_windows.of, strict=True)):
            row = s.blocks.tables[one.table_row, group]
            assert row[: len(table.blocks)].tolist() == table.blocks
            assert table.blocks[: table.n_dropped] == [NO_BLOCK] * table.n_dropped
            assert len(table.blocks) - table.n_dropped <= window.most_blocks(longest)
        if one.is_decoding:
            assert counts_of[one] == 1, "a decode was left out"
    assert not any(one.tables or one.n_room or one.n_cached for one in s.waiting)


def check_cache(
    s: Scheduler,
    step: Step,
    cache: dict[tuple[int, int], tuple[int, list[int]]],
    windows: Windows,
) -> None:
    """What a sequence finds in the blocks that it sees is what it would have computed itself."""
    for source, target in s.blocks.take_copies():
        for i in range(BLOCK_TOKENS):
            cache[target, i] = cache.get((source, i), (0, []))
    for turn in step.turns:
        one = turn.sequence
        tokens = [*one.tokens, *turn.draft]
        for group, window in enumerate(windows.of):
            first = 0 if window.size is None else max(0, one.n_cached + 1 - window.size)
            for i in range(first, one.n_cached + turn.count + len(turn.draft)):
                place = one.tables[group].blocks[i // BLOCK_TOKENS], i % BLOCK_TOKENS
                if i < one.n_cached:
                    assert cache[place] == (group, tokens[: i + 1])
                else:
                    cache[place] = group, tokens[: i + 1]
