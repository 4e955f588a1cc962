"""Clients that each send the next request when the last one is answered, on our own scheduler.

Nothing is computed: what a step takes is asked for, and the pacer learns it as it does in a server.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Step
from lanewise.engine.scheduling.pacing import Pacer
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.planning.steps import StepCost, StepSize, StepTime, seen
from lanewise.planning.work import WHOLE, WindowShares
from lanewise.runtime import Sampled

ROUNDS = 4  # requests of each client that are counted, after one that is not
MANY_TOKENS = 300_000  # of all answers that are counted; more take many seconds: fewer rounds


@dataclass(frozen=True, slots=True)
class Traffic:
    """What each client sends."""

    prompt_tokens: int
    answer_tokens: int
    request_s: float = 0.0  # from an answer's end to the next prompt in the queue
    apart_s: float = 0.0  # between two of them in the queue: requests are read one after the other


@dataclass(frozen=True, slots=True)
class Server:
    """What shares steps among requests."""

    config: SchedulerConfig
    n_blocks: int
    pacer: Pacer | None  # None: prompts take what a step has room for
    windows: WindowShares = WHOLE


@dataclass(frozen=True, slots=True)
class Outcome:
    """What so many clients see; seconds, and tokens of answers a second of all together."""

    clients: int
    first_token_s: float  # medians
    first_token_p95_s: float
    between_tokens_s: float  # of one answer's mean
    tokens_s: float
    requests_s: float
    limit: str  # what most of the time goes to
    shares: dict[str, float]  # of the time, by limit
    preempted: int


@dataclass(slots=True)
class _Times:
    """Of one request."""

    sent: float
    first: float = 0.0


@dataclass(slots=True)
class _Run:
    traffic: Traffic
    scheduler: Scheduler
    now: float = 0.0
    times: dict[Scheduled, _Times] = field(default_factory=dict)
    # When prompts will be in the queue, and when they were sent; in this order.
    arrivals: deque[tuple[float, float]] = field(default_factory=deque)
    last_arrival: float = 0.0
    n_sent: int = 0
    first_tokens: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    spent: StepTime = field(default_factory=StepTime)
    began: float | None = None  # when the requests that count began
    ended: float = 0.0
    preempted: int = 0


def simulate(clients: int, traffic: Traffic, server: Server, cost: StepCost) -> Outcome:
    """What so many clients see once all have been answered once."""
    run = _Run(traffic, Scheduler(server.config, BlockPool(server.n_blocks), server.pacer))
    for _ in range(clients):
        _send(run)
    rounds = max(1, min(ROUNDS, MANY_TOKENS // (clients * traffic.answer_tokens)))
    while len(run.first_tokens) < clients * rounds:
        _arrive(run)
        step = run.scheduler.schedule()
        run.preempted += len(step.preempted)
        if not step.turns:
            run.now = run.arrivals[0][0]
            continue
        size = size_of(step, server.windows)
        work = run.scheduler.work_of(step.turns)
        took = cost(size)
        run.now += took.seconds
        if run.began is not None:
            run.spent += took
        if server.pacer is not None:
            server.pacer.cost.learn(work, took.seconds)
        _finish(run, step)
    return _outcome(run, clients)


def size_of(step: Step, windows: WindowShares) -> StepSize:
    """What the library is asked for."""
    rows, logits, attended, cached = 0, 0, 0.0, 0.0
    for turn in step.turns:
        pairs, tokens = seen(turn.count, turn.sequence.n_cached, windows)
        rows += turn.count
        logits += turn.ends_in_draw
        attended += pairs
        cached += tokens
    return StepSize(rows, logits, attended, cached, len(step.turns))


def _arrive(run: _Run) -> None:
    """Queue what has been sent by now."""
    while run.arrivals and run.arrivals[0][0] <= run.now:
        _, sent = run.arrivals.popleft()
        run.n_sent += 1
        sequence = _new_sequence(run.traffic, run.n_sent)
        run.times[sequence] = _Times(sent)
        run.scheduler.add(sequence)


def _send(run: _Run) -> None:
    """A client sends a prompt now."""
    traffic = run.traffic
    run.last_arrival = max(run.now + traffic.request_s, run.last_arrival + traffic.apart_s)
    run.arrivals.append((run.last_arrival, run.now))


def _new_sequence(traffic: Traffic, number: int) -> Scheduled:
    """A prompt like no other: nothing of it is in the cache."""
    prompt = range(number * traffic.prompt_tokens, (number + 1) * traffic.prompt_tokens)
    params = SamplingParams(seed=0, max_tokens=traffic.answer_tokens)
    return Scheduled(GenerationRequest(list(prompt), params))


def _finish(run: _Run, step: Step) -> None:
    results = [[Sampled(0, 0.0)] * turn.ends_in_draw for turn in step.turns]
    run.scheduler.record(step, results)
    for turn in step.turns:
        sequence = turn.sequence
        if not turn.ends_in_draw:
            continue
        times = run.times[sequence]
        if sequence.n_output == 1:
            times.first = run.now
        if sequence.finish_reason(None) is not None:
            _note(run, sequence, times)


def _note(run: _Run, sequence: Scheduled, times: _Times) -> None:
    """An answer has ended: its client sends the next, after the first when all have theirs."""
    run.scheduler.finish(sequence)
    del run.times[sequence]
    if run.began is not None:
        run.first_tokens.append(times.first - times.sent)
        run.between.append((run.now - times.first) / max(1, sequence.n_output - 1))
        run.ended = run.now
        _send(run)
    elif not run.times:
        run.began = run.now
        for _ in range(run.n_sent):
            _send(run)


def _outcome(run: _Run, clients: int) -> Outcome:
    ordered = sorted(run.first_tokens)
    seconds = run.ended - (run.began or 0.0)
    return Outcome(
        clients=clients,
        first_token_s=median(ordered),
        first_token_p95_s=_at(ordered, 0.95),
        between_tokens_s=median(run.between),
        tokens_s=len(ordered) * run.traffic.answer_tokens / seconds,
        requests_s=len(ordered) / seconds,
        limit="memory" if run.preempted else run.spent.limit,
        shares={name: one / run.spent.seconds for name, one in asdict(run.spent).items()},
        preempted=run.preempted,
    )


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]
