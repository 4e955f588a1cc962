"""The queue: importance, turns of clients, order within a client."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.engine.block_pool import BlockPool
from lanewise.engine.sampling import SamplingParams
from lanewise.engine.scheduler import Scheduler, SchedulerConfig
from lanewise.engine.sequence import GenerationRequest, Sequence
from lanewise.engine.waiting import OUTPUT_WEIGHT, WaitingQueue


def sequence(client: int = 0, priority: int = 0, n_prompt: int = 10, max_tokens: int = 5):
    params = SamplingParams(seed=0, max_tokens=max_tokens)
    return Sequence(
        GenerationRequest([1] * n_prompt, params, priority=priority, client=client),
    )


def serve_all(queue: WaitingQueue) -> list[Sequence]:
    order = []
    while queue:
        one = queue.pop()
        queue.note_started(one, one.n_prompt)
        order.append(one)
    return order


def test_order_is_priority_then_turns_of_clients_then_arrival():
    queue = WaitingQueue()
    many = [sequence(client=1) for _ in range(4)]
    few = [sequence(client=2) for _ in range(2)]
    urgent, idle = sequence(client=1, priority=-1), sequence(client=2, priority=3)
    for one in (idle, *many, *few, urgent):
        queue.add(one)
    assert len(queue) == len(list(queue)) == 8
    # The urgent one counts for its client, so the other one has the first turn.
    assert serve_all(queue) == [urgent, *few[:1], many[0], few[1], *many[1:], idle]


def test_who_was_idle_has_saved_nothing_up():
    queue = WaitingQueue()
    for _ in range(50):
        queue.add(sequence(client=1))
    serve_all(queue)
    busy, back = ([sequence(client=c) for _ in range(4)] for c in (1, 2))
    for one in (*busy, *back):
        queue.add(one)
    assert [one.request.client for one in serve_all(queue)] == [2, 1, 2, 1, 2, 1, 2, 1]


def test_put_back_comes_first_of_its_client_and_removed_ones_never():
    queue = WaitingQueue()
    first, second, third = (sequence() for _ in range(3))
    for one in (first, second, third):
        queue.add(one)
    assert queue.pop() is first
    queue.remove(second)
    queue.put_back(first)
    assert list(queue) == [first, third]
    assert serve_all(queue) == [first, third]
    assert not queue


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 120), st.integers(1, 30)), min_size=2, max_size=3
    ),  # of each client's requests: tokens in and out
    max_seqs=st.integers(1, 4),
)
def test_clients_that_always_have_work_get_equal_service(sizes, max_seqs):
    """No two differ by more than what is underway and a request of each, whatever they ask."""
    pool = BlockPool(200)
    s = Scheduler(SchedulerConfig(max_seqs, 64, 64, 6400, prefix_cache=False), pool)
    served = [0] * len(sizes)
    waiting = [0] * len(sizes)
    largest = max(n_in + OUTPUT_WEIGHT * n_out for n_in, n_out in sizes)
    for _ in range(300):
        for client, (n_in, n_out) in enumerate(sizes):
            while waiting[client] < max_seqs:  # enough to fill every place alone
                s.add(sequence(client, n_prompt=n_in, max_tokens=n_out))
                waiting[client] += 1
        step = s.schedule()
        for one in step.admitted:
            served[one.request.client] += one.n_prompt
            waiting[one.request.client] -= 1
        s.complete(step)
        for turn in step.turns:
            if turn.draws:
                turn.sequence.tokens.append(1)
                served[turn.sequence.request.client] += OUTPUT_WEIGHT
                if not turn.sequence.draws:
                    s.finish(turn.sequence)
        assert max(served) - min(served) <= (max_seqs + 2) * largest
    assert min(served) > 0
