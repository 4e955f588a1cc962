"""A plan: what so many users see, what their conversations take, and what their tokens cost."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from lanewise import host
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.scheduling.pacing import FAMILIAR, Pacer, Work
from lanewise.planning.clients import Outcome, Server, Traffic, simulate
from lanewise.planning.machines import Instance, Machine, Price
from lanewise.planning.memory import MemoryPlan, plan_memory
from lanewise.planning.steps import StepCost, StepSize, StepTime, chunk_size, decode_size, seen
from lanewise.planning.work import ModelWork, WindowShares
from lanewise.runtime import KvLayout

# What a step costs outside the library, as measured on a machine with two cores: its planning, more
# where weights push Python out of the caches, and for each further token sent what that takes from
# the threads that compute.
SERVER_STEP_S, SERVER_COLD_S, SERVER_TOKEN_S = 0.1e-3, 0.25e-3, 0.1e-3
CACHE_BYTES = 64 << 20
REQUEST_S, APART_S = 5e-3, 1e-3  # from a request to its prompt in the queue, and between two such


@dataclass(frozen=True, slots=True)
class Planned:
    """What is planned for: a model, and what its steps take on a machine."""

    name: str
    weights: str
    kv_type: str
    layout: KvLayout
    work: ModelWork
    machine: Machine
    cost: StepCost
    limit: host.MemoryLimit
    instance: Instance | None = None
    busy: str | None = None  # what says that others used the machine that was measured


@dataclass(frozen=True, slots=True)
class Asked:
    """What users do, and how the server is set up."""

    users: tuple[int, ...]
    prompt_tokens: int
    answer_tokens: int
    context: int
    engine: str
    price: Price | None
    max_seqs: int
    max_step_tokens: int
    max_queued_requests: int
    itl_target_s: float
    max_draft: int


def report_of(planned: Planned, asked: Asked) -> dict[str, Any]:
    """All that is known, as plain values; HostError where not one conversation fits."""
    config = SchedulerConfig(
        max_seqs=asked.max_seqs,
        max_step_tokens=asked.max_step_tokens,
        max_step_logits=asked.max_step_tokens,
        max_model_len=asked.context,
        windows=planned.layout.windows,
    )
    memory = plan_memory(
        planned.limit, planned.work.held_bytes, planned.layout, config, asked.max_draft
    )
    memory.check_one_fits()
    config = replace(config, max_seqs=memory.max_seqs)
    outcomes = _outcomes(planned, asked, memory, config)
    return {
        "model": _model_row(planned),
        "engine": asked.engine,
        "machine": _machine_row(planned, asked.price),
        "prompt_tokens": asked.prompt_tokens,
        "answer_tokens": asked.answer_tokens,
        "context": asked.context,
        "memory": {
            "limit_bytes": memory.limit.n_bytes,
            "limit_reason": memory.limit.reason,
            "weight_bytes": memory.weight_bytes,
            "tower_bytes": planned.work.tower_bytes,
            "kv_bytes": memory.kv_bytes,
            "kv_tokens": memory.kv_tokens,
            "kv_reason": memory.reason,
            "state_bytes": memory.state_bytes,
            "snapshots": memory.n_snapshots,
            "max_seqs": memory.max_seqs,
        },
        "alone": _alone(planned, asked),
        "most_users": memory.max_seqs + asked.max_queued_requests,
        "users": [_row(outcome, memory, asked.price) for outcome in outcomes],
    }


def _outcomes(
    planned: Planned, asked: Asked, memory: MemoryPlan, config: SchedulerConfig
) -> Iterable[Outcome]:
    traffic = Traffic(asked.prompt_tokens, asked.answer_tokens, REQUEST_S, APART_S)
    ours, read = asked.engine == "lanewise", planned.work.bytes_read(1)

    def cost(size: StepSize) -> StepTime:
        return planned.cost(size) + StepTime(overhead=server_seconds(size, read) if ours else 0.0)

    pacer = experienced_pacer(asked, planned.work.windows, cost) if ours else None
    for clients in asked.users:
        blocks = min(memory.blocks, (clients + 1) * memory.user_blocks)
        server = Server(config, blocks, pacer, planned.work.windows)
        yield simulate(clients, traffic, server, cost)


def server_seconds(size: StepSize, read: float) -> float:
    """What our server adds to a step that reads so many bytes of weights."""
    cold = SERVER_COLD_S * min(1.0, read / CACHE_BYTES)
    return SERVER_STEP_S + cold + SERVER_TOKEN_S * max(0.0, size.logits - 1)


def experienced_pacer(asked: Asked, windows: WindowShares, cost: StepCost) -> Pacer:
    """That of a server that has run for a while, and seen steps of many sizes."""
    pacer = Pacer(asked.itl_target_s)
    rows = [1 << i for i in range(asked.max_step_tokens.bit_length())]
    for context, count in product((0, asked.prompt_tokens), rows):
        work = Work()
        work.add(count, context)
        seconds = cost(StepSize(count, 1, *seen(count, context, windows), sequences=1)).seconds
        for _ in range(FAMILIAR):
            pacer.cost.learn(work, seconds)
    return pacer


def _row(outcome: Outcome, memory: MemoryPlan, price: Price | None) -> dict[str, Any]:
    fits = memory.fits(outcome.clients)
    usd = None if price is None else 1e6 * price.usd_hour / (3600 * outcome.tokens_s)
    return {
        **asdict(outcome),
        "limit": outcome.limit if fits else "memory",
        "kv_needed_bytes": memory.needed_bytes(outcome.clients),
        "fits": fits,
        "usd_per_million_tokens": usd,
    }


def _model_row(planned: Planned) -> dict[str, Any]:
    return {
        "name": planned.name,
        "weights": planned.weights,
        "kv_type": planned.kv_type,
        "token_bytes": planned.work.bytes_read(1),
        "kv_token_bytes": planned.work.kv_token_bytes,
    }


def _machine_row(planned: Planned, price: Price | None) -> dict[str, Any]:
    machine, instance = planned.machine, planned.instance
    return {
        "name": machine.name,
        "isa": machine.isa,
        "threads": machine.threads,
        "read_gb_s": machine.read_s / 1e9,
        "measured": instance is None,
        "instance": None if instance is None else asdict(instance),
        "price": None if price is None else asdict(price),
    }


def _alone(planned: Planned, asked: Asked) -> dict[str, Any]:
    """A prompt with no other request, and decoding behind it; without what a server adds."""
    windows = planned.work.windows
    chunk = chunk_size(asked.prompt_tokens, windows)
    prompt = planned.cost(chunk)
    context = asked.prompt_tokens + asked.answer_tokens // 2
    decode = planned.cost(decode_size(1, context, windows))
    return {
        "prompt_tokens_s": chunk.rows / prompt.seconds,
        "prompt_limit": prompt.limit,
        "decode_tokens_s": 1 / decode.seconds,
        "decode_limit": decode.limit,
    }
