"""The queue: importance, turns of clients, order within a client."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.engine.scheduling.waiting import OUTPUT_WEIGHT, Shares, WaitingQueue, who_gives_way
from lanewise.runtime import Sampled


def sequence(client: int = 0, priority: int = 0, n_prompt: int = 10, max_tokens: int = 5):
    params = SamplingParams(seed=0, max_tokens=max_tokens)
    return Scheduled(
        GenerationRequest([1] * n_prompt, params, priority=priority, client=client),
    )


def queue_of(*sequences: Scheduled) -> tuple[WaitingQueue, Shares]:
    shares = Shares()
    queue = WaitingQueue(shares)
    for one in sequences:
        shares.enter(one)
        queue.add(one)
    return queue, shares


def serve_all(queue: WaitingQueue, shares: Shares) -> list[Scheduled]:
    """In the order in which they come out when each is computed at once."""
    order = []
    while queue:
        one = queue.pop(())
        shares.note_started(one)
        shares.note(one, one.n_prompt, 0)
        order.append(one)
    return order


def test_order_is_priority_then_turns_of_clients_then_arrival():
    many = [sequence(client=1) for _ in range(4)]
    few = [sequence(client=2) for _ in range(2)]
    urgent, idle = sequence(client=1, priority=-1), sequence(client=2, priority=3)
    queue, shares = queue_of(idle, *many, *few, urgent)
    assert len(queue) == len(list(queue)) == 8
    # The urgent one counts for its client, so the other one has the first turn.
    assert serve_all(queue, shares) == [urgent, *few[:1], many[0], few[1], *many[1:], idle]


def test_clients_take_turns_though_nothing_is_computed_yet():
    queue, _ = queue_of(*[sequence(client=c) for c in (1, 1, 1, 2, 2)])
    running = []
    while queue:
        one = queue.pop(running)
        one.n_admitted = one.n_prompt
        running.append(one)
    assert [one.request.client for one in running] == [1, 2, 1, 2, 1]


def test_who_was_idle_has_saved_nothing_up():
    queue, shares = queue_of(*[sequence(client=1) for _ in range(50)])
    served = serve_all(queue, shares)
    for one in served:
        shares.leave(one)
    shares.note_step()
    for one in [sequence(client=c) for c in (1, 1, 1, 1, 2, 2, 2, 2)]:
        shares.enter(one)
        queue.add(one)
    assert [one.request.client for one in serve_all(queue, shares)] == [2, 1, 2, 1, 2, 1, 2, 1]


def test_short_requests_pass_long_ones_which_do_not_wait_for_ever():
    long = sequence(n_prompt=100)
    queue, shares = queue_of(long)
    passed = 0
    while True:
        short = sequence(n_prompt=10)
        shares.enter(short)
        queue.add(short)
        one = queue.pop(())
        shares.note(one, one.n_prompt, 0)
        if one is long:
            break
        passed += one.n_prompt
    assert 80 <= passed <= 100


def test_of_a_client_a_request_of_which_none_runs_comes_before_the_rest_of_another():
    group = object()
    batch = [sequence() for _ in range(4)]
    for i, one in enumerate(batch):
        one.group, one.n_before = group, 10 * i
    single = sequence(n_prompt=200)
    queue, _ = queue_of(*batch, single)
    assert queue.pop(()) is batch[0]
    assert queue.pop(batch[:1]) is single
    assert queue.pop([batch[0], single]) is batch[1]


def test_put_back_comes_first_of_its_request_and_removed_ones_never():
    first, second, third = (sequence() for _ in range(3))
    queue, shares = queue_of(first, second, third)
    assert queue.pop(()) is first
    queue.remove(second)
    first.n_preempted = 1
    queue.put_back(first)
    assert set(queue) == {first, third}
    assert serve_all(queue, shares) == [first, third]
    assert not queue


def groups_of(*specs: tuple[int, int]) -> list[Scheduled]:
    """Running sequences, one for each (client, request)."""
    requests: dict[int, object] = {}
    running = []
    for client, number in specs:
        one = sequence(client)
        one.group = requests.setdefault(number, one.group)
        running.append(one)
    return running


def test_who_holds_most_gives_way_and_nobody_loses_the_last():
    shares = Shares()
    newcomer = sequence(client=2)
    shares.enter(newcomer)

    def gives_way(newcomer, running, sizes, wanted):
        for one in (newcomer, *running):
            shares.enter(one)
        return who_gives_way(newcomer, running, sizes, wanted, shares)

    running = groups_of((1, 1), (1, 1), (1, 2), (3, 3), (3, 4))
    ones = [1] * 5
    assert gives_way(newcomer, running, ones, 1) == []  # nobody has got more than it
    for one in (running[0], running[3]):
        shares.note(one, 50, 0)
    assert gives_way(newcomer, running, ones, 1) == [running[2]]
    # Of the same client only a request with several gives way.
    assert gives_way(sequence(client=3), running[3:], [1, 1], 1) == []
    batch = groups_of((3, 5), (3, 5), (3, 5))
    assert gives_way(sequence(client=3), batch, [1] * 3, 1) == [batch[2]]
    assert gives_way(batch[0], batch, [1] * 3, 1) == []
    # Blocks: as many as are lacking, or nobody.
    assert gives_way(newcomer, running, [5, 4, 4, 2, 2], 10) == []
    assert gives_way(newcomer, running, [9, 4, 4, 2, 2], 4) == [running[2]]
    assert gives_way(newcomer, running, [30, 4, 4, 2, 2], 6) == [running[2], running[1]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=12))
def test_giving_way_comes_to_an_end(specs):
    """Whoever had to give way takes nothing back: places are shared more evenly each time."""
    running = groups_of(*specs)
    shares = Shares()
    for got, one in enumerate(running):
        shares.enter(one)
        shares.note(one, got, 0)
    queue = [running.pop() for _ in range(len(running) // 2)]
    for _ in range(200):
        for newcomer in list(queue):
            victims = who_gives_way(newcomer, running, [1] * len(running), 1, shares)
            for victim in victims:
                running.remove(victim)
                queue.append(victim)
            if victims:
                queue.remove(newcomer)
                running.append(newcomer)
                break
        else:
            return
    raise AssertionError("they take from each other for ever")


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
            if one.n_preempted:  # it had to give way meanwhile
                continue
            served[one.request.client] += one.n_prompt
            waiting[one.request.client] -= 1
        s.record(step, [[Sampled(1, 0.0)] if turn.ends_in_draw else [] for turn in step.turns])
        for turn in step.turns:
            if turn.ends_in_draw:
                served[turn.sequence.request.client] += OUTPUT_WEIGHT
                if not turn.sequence.draws_more:
                    s.finish(turn.sequence)
        assert max(served) - min(served) <= (max_seqs + 2) * largest
    assert min(served) > 0
