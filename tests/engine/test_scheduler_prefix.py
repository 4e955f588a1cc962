"""What sequences find of others in the prefix cache, and what waits for what."""

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.scheduling.scheduler import Scheduler
from scheduling import counts, run, run_to_end, scheduler, sequence, step_that_preempts


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
    assert [target for _, target in s.blocks.take_copies()] == longer.tables[0].blocks[3:4]


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
    assert s.blocks.take_copies() == [(first.tables[0].blocks[1], parting.tables[0].blocks[1])]
    assert parting.tables[0].blocks[0] == first.tables[0].blocks[0]


def test_copies_that_are_given_back_come_before_those_asked_for_since():
    """A later one may be from the block that an earlier one fills: another's text else."""
    s = scheduler(max_step_tokens=200)
    first = sequence(70, 8, text=1)
    s.add(first)
    run(s)
    parting, later = (sequence(70, 1, text=1) for _ in range(2))
    for one in (parting, later):
        one.tokens[45:] = sequence(25).tokens
    s.add(parting)
    s.schedule()
    taken = s.take_copies()
    s.add(later)
    s.schedule()  # planned while the step with the copies runs, which fails
    s.give_back(taken)
    targets = [one.tables[0].blocks[1] for one in (parting, later)]
    assert [target for _, target in s.take_copies().blocks] == targets
    assert s.take_copies().blocks == []


def test_an_answer_is_found_by_who_goes_on_with_it():
    s = scheduler(max_step_tokens=200)
    first = sequence(40, 8, text=1)
    run_to_end(s, first)
    params = SamplingParams(seed=0, max_tokens=1)
    turn_two = Scheduled(GenerationRequest([*first.tokens, 7, 7, 7], params))
    s.add(turn_two)
    s.schedule()
    assert turn_two.n_reused == 47  # the last token drawn was never given to the model


def test_what_comes_together_is_computed_once():
    s = scheduler(max_step_tokens=40, max_seqs=4)
    alike = [sequence(100, 1, text=1) for _ in range(3)]
    other = sequence(110, 1)
    for one in (*alike, other):
        s.add(one)
    assert run(s) == [40]  # those like the first wait for it
    assert list(s.waiting) == [*alike[1:], other]
    assert run(s) == [40]
    assert run(s) == [20, 20]
    assert run(s) == [1, 1, 38]
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
    salted = Scheduled(GenerationRequest(list(sequence(64, text=1).tokens), params, 0, "mine"))
    other = sequence(64, 1, text=1)
    other.tokens[0] += 1
    for one in (sequence(64, 1, text=1), salted, other, sequence(64, 1, text=1, scoring=True)):
        s.add(one)
        run(s)
        assert one.n_reused == 0
    again = Scheduled(GenerationRequest(list(salted.tokens[:64]), params, 0, "mine"))
    s.add(again)
    run(s)
    assert again.n_reused == 63


def test_without_the_cache_nothing_is_shared():
    config = SchedulerConfig(4, 200, 16, 3200, prefix_cache=False)
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
