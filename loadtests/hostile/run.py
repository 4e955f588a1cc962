"""Runs kinds of hostile requests against one server, honest streams beside them."""

import asyncio
import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from loadtests.exchange import Answer, Record, exchange, post
from loadtests.hostile.beside import Beside, Probe
from loadtests.hostile.bodies import BODIES
from loadtests.hostile.honest import Clients, Crowd, crowd
from loadtests.hostile.making import Hostile
from loadtests.hostile.memory import MEMORY
from loadtests.hostile.tenants import Telling, tell
from loadtests.hostile.watch import Sight, watching
from loadtests.hostile.wire import WIRE
from loadtests.server import Server, resident_bytes

LONG_WORK, COMPILES, TENANTS, TOGETHER = "long work", "compiles", "tenants", "together"
UNDISTURBED, STOP = "undisturbed", "stop"
ATTACKS = WIRE | MEMORY
KINDS = (*BODIES, *ATTACKS, COMPILES, LONG_WORK, TOGETHER, TENANTS)
HONEST_KEYS = ("honest-1", "honest-2", "honest-3")
HOSTILE_KEY, PROBE_KEY, TENANT_KEYS = "hostile-1", "probe-1", ("tenant-1", "tenant-2")
KEYS = (*HONEST_KEYS, HOSTILE_KEY, PROBE_KEY, *TENANT_KEYS)
UNDISTURBED_S = 10.0
SETTLE_S = 1.0  # after each kind
REST_S = 5.0  # before memory is read
TOGETHER_AT_ONCE = 24
TIMEOUT_S = 60.0
FILL_AT_ONCE = 4
NICENESS = 10  # hostile clients are other machines: what they compute is not the server's


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to a server."""

    kinds: Sequence[str]
    rounds: int
    honest_tokens: int
    probes: int
    seed: int


@dataclass(slots=True)
class Visit:
    """One kind, once: when, and what became of its requests."""

    kind: str
    began: float
    ended: float = 0.0
    record: Record = field(default_factory=Record)


@dataclass(slots=True)
class Life:
    """Everything of one server, from its start to its end."""

    visits: list[Visit] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    telling: Telling | None = None
    memory: list[int] = field(default_factory=list)  # resident bytes after each round
    crowd: Crowd = field(default_factory=lambda: Crowd((), ()))
    sight: Sight = field(default_factory=lambda: Sight((), (), ()))
    died_of: str | None = None
    log: str = ""

    def probe(self, what: str) -> Probe | None:
        """The first probe of a name."""
        return next((probe for probe in self.probes if probe.what == what), None)


class Attacker:
    """Sends each kind; what it notes is judged later, when the watchers have told what they saw."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._rng = random.Random(plan.seed)
        request = urllib.request.Request(
            f"{server.url}/tokenizer_info", headers={"Authorization": f"Bearer {PROBE_KEY}"}
        )
        with urllib.request.urlopen(request) as answer:
            context = int(json.load(answer)["max_model_len"])
        self._beside = Beside(server.port, PROBE_KEY, HOSTILE_KEY, context, self._rng)
        self._context = context
        self.life = Life()

    async def lone_answers(self) -> list[object]:
        """What honest clients are to get."""
        clients = Clients(self._server.url, HONEST_KEYS[:1], self._plan.honest_tokens)
        return await clients.alone()

    async def fill(self, tokens: int) -> None:
        """Use the KV cache up once, so that its memory is there before memory is compared."""
        each = self._context - 8
        gate = asyncio.Semaphore(FILL_AT_ONCE)

        async def one() -> None:
            ids = [self._rng.randrange(300, 500) for _ in range(each)]
            async with gate:
                body = {"prompt": ids, "max_tokens": 1}
                await exchange(self._server.port, post("/v1/completions", body, PROBE_KEY), 600.0)

        await asyncio.gather(*(one() for _ in range(tokens // each + 1)))

    async def run(self) -> None:
        """All kinds in all rounds, or up to the one that the server did not survive."""
        await self._visit(UNDISTURBED, self._undisturbed)
        for _ in range(self._plan.rounds):
            for kind in self._plan.kinds:
                if kind == TENANTS:
                    continue
                await self._visit(kind, self._attack(kind))
                if not self.alive():
                    self.life.died_of = kind
                    return
            await asyncio.sleep(REST_S)
            self.life.memory.append(resident_bytes(self._server.process.pid))

    async def tenants(self) -> None:
        """The probes of one tenant into another, with nothing beside them."""

        async def probe(_: Record) -> None:
            telling = await tell(self._server.url, TENANT_KEYS, self._plan.seed, self._plan.probes)
            self.life.telling = telling

        await self._visit(TENANTS, probe)

    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self._server.process.poll() is None

    async def _visit(
        self, kind: str, attack: Callable[[Record], Coroutine[None, None, None]]
    ) -> None:
        visit = Visit(kind, time.perf_counter())
        self.life.visits.append(visit)
        try:
            await attack(visit.record)
        except Exception as error:
            visit.record.problems.append(f"{kind}: {error!r}")
        await asyncio.sleep(SETTLE_S)
        visit.ended = time.perf_counter()
        print(f"{kind}: {visit.ended - visit.began:.0f} s", file=sys.stderr, flush=True)

    def _attack(self, kind: str) -> Callable[[Record], Coroutine[None, None, None]]:
        if kind == LONG_WORK:
            return self._long_work
        if kind == COMPILES:
            return self._compiles
        if kind == TOGETHER:
            return self._together
        if kind in ATTACKS:
            return lambda record: ATTACKS[kind](self._server.port, HOSTILE_KEY, record)
        return lambda record: self._bodies(BODIES[kind], record)

    async def _undisturbed(self, _: Record) -> None:
        await asyncio.sleep(UNDISTURBED_S)

    async def _long_work(self, record: Record) -> None:
        self.life.probes += [await self._beside.alone(), await self._beside.ordinary()]
        self.life.probes += await self._beside.each(record)

    async def _compiles(self, record: Record) -> None:
        self.life.probes.append(await self._beside.compiles(record))

    async def _bodies(self, attacks: Sequence[Hostile], record: Record) -> None:
        for attack in attacks:
            raw = post(attack.path, attack.make(), HOSTILE_KEY)
            await asyncio.gather(*(self._send(attack, raw, record) for _ in range(attack.copies)))
            if not self.alive():
                record.problems.append(f"{attack.what}: the process ended")
                return

    async def _together(self, record: Record) -> None:
        """Everything that is a body, in any order, many at a time."""
        attacks = [attack for kind in BODIES.values() for attack in kind]
        self._rng.shuffle(attacks)
        gate = asyncio.Semaphore(TOGETHER_AT_ONCE)

        async def one(attack: Hostile) -> None:
            async with gate:
                # Beside the loop: who has connected must not wait for another's body to be made.
                raw = await asyncio.to_thread(lambda: post(attack.path, attack.make(), HOSTILE_KEY))
                await self._send(attack, raw, record)

        await asyncio.gather(*(one(attack) for attack in attacks))

    async def _send(self, attack: Hostile, raw: bytes, record: Record) -> None:
        try:
            answer = await exchange(self._server.port, raw, TIMEOUT_S)
        except TimeoutError:
            record.outcomes["no answer"] += 1
            record.problems.append(f"{attack.what}: no answer within {TIMEOUT_S:g} s")
            return
        except OSError as error:
            answer = Answer(0, {}, str(error).encode())
        record.judge(attack.what, answer, attack.accepted)


@contextmanager
def _nice() -> Iterator[None]:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, max(before, NICENESS))
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def live_through(server: Server, plan: Plan, kv_tokens: int) -> Life:
    """Start the watchers, run the plan, and collect what all of them saw.

    ``kv_tokens`` is what is computed before, to fill the KV cache; 0 leaves it as it is.
    """
    attacker = Attacker(server, plan)
    expected = asyncio.run(attacker.lone_answers())
    if kv_tokens:
        asyncio.run(attacker.fill(kv_tokens))
    life = attacker.life
    with watching(server.port, server.process.pid) as watcher:
        if any(kind != TENANTS for kind in plan.kinds):
            with crowd(server.url, HONEST_KEYS, plan.honest_tokens, expected) as honest:
                with _nice():
                    asyncio.run(attacker.run())
                life.crowd = honest.finish()
        if TENANTS in plan.kinds and attacker.alive():
            asyncio.run(attacker.tenants())
        life.sight = watcher.finish()
    life.log = server.log_text()
    return life
