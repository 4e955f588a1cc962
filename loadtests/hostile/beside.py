"""What long work of one client costs a short request of another."""

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from loadtests.exchange import Answer, Record, exchange, post
from loadtests.hostile.grammars import optional_letters
from loadtests.hostile.making import CHAT, COMPLETION, chat
from loadtests.http_stream import StreamError, Target, post_stream
from loadtests.scenario import WORDS

PROBES = 12
PAUSE_S = 0.2
START_S = 1.0  # until a heavy request is read, checked and has begun
TIMEOUT_S = 60.0
MAX_S = 30.0  # for the short requests beside one thing
COMPILES = 8  # requests with schemas of their own beside slow grammars
SLOW_COMPILES = 64


@dataclass(slots=True)
class Probe:
    """Seconds to the one token of each short request, beside something or alone."""

    what: str
    began: float = 0.0
    ended: float = 0.0
    seconds: list[float] = field(default_factory=list)

    def p90_ms(self) -> float:
        """What nine of ten did not exceed; infinite if none came."""
        if not self.seconds:
            return float("inf")
        return 1000 * sorted(self.seconds)[int(0.9 * (len(self.seconds) - 1))]

    def median_ms(self) -> float:
        """The median; infinite if none came."""
        return 1000 * statistics.median(self.seconds) if self.seconds else float("inf")

    def worst_ms(self) -> float:
        """The longest; infinite if none came."""
        return 1000 * max(self.seconds, default=float("inf"))


@dataclass(frozen=True, slots=True)
class Beside:
    """Where requests go, and how long they may be."""

    port: int
    key: str  # of the short requests
    hostile_key: str
    context: int  # tokens
    rng: random.Random

    def heavy(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Bodies whose work is long, at most as long as the context allows."""
        most = min(7_900, self.context - 8)
        each = min(5_000, self.context - 8)
        rng = self.rng

        def ids(count: int) -> list[int]:
            return [rng.randrange(300, 500) for _ in range(count)]

        return {
            f"{most:,} tokens with echo and 20 logprobs": lambda: {
                "prompt": ids(most),
                "echo": True,
                "logprobs": 20,
                "max_tokens": 1,
            },
            "n = 128": lambda: {
                "prompt": ids(8),
                "n": 128,
                "max_tokens": 300,
                "ignore_eos": True,
            },
            f"256 prompts of {each:,} tokens": lambda: {
                "prompt": [ids(each) for _ in range(256)],
                "max_tokens": 1,
            },
        }

    async def short(self, probe: Probe, count: int = PROBES) -> None:
        """Time so many short requests, one after the other; fewer if they take too long."""
        target = Target.parse(f"http://127.0.0.1:{self.port}", "completions", self.key)
        stop = time.perf_counter() + MAX_S
        for _ in range(count):
            if time.perf_counter() > stop:
                break
            prompt = " ".join(self.rng.choices(WORDS, k=8))
            body: dict[str, object] = {"prompt": prompt, "max_tokens": 1, "stream": True}
            began = time.perf_counter()
            with suppress(StreamError):
                await post_stream(target, body | {"ignore_eos": True}, TIMEOUT_S)
            probe.seconds.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE_S)

    async def ordinary(self) -> Probe:
        """The span in which a prompt of a quarter of the context is computed."""
        tokens = min(2_000, self.context // 2)
        body = {"prompt": [self.rng.randrange(300, 500) for _ in range(tokens)], "max_tokens": 1}
        probe = Probe("an ordinary long prompt", time.perf_counter())
        await exchange(self.port, post(COMPLETION, body, self.key), TIMEOUT_S)
        probe.ended = time.perf_counter()
        return probe

    async def alone(self) -> Probe:
        """Short requests beside nothing but the honest streams."""
        probe = Probe("alone", time.perf_counter())
        await self.short(probe)
        probe.ended = time.perf_counter()
        return probe

    async def each(self, record: Record) -> list[Probe]:
        """Short requests beside each kind of long work."""
        probes = []
        for what, make in self.heavy().items():
            raw = post(COMPLETION, make(), self.hostile_key)
            probe = Probe(what)
            working = asyncio.create_task(self._again(raw, what, record))
            await asyncio.sleep(START_S)
            probe.began = time.perf_counter()
            await self.short(probe)
            probe.ended = time.perf_counter()
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
            probes.append(probe)
            await asyncio.sleep(START_S)
        return probes

    async def _again(self, raw: bytes, what: str, record: Record) -> None:
        """The same request over and over: some are done before all probes are."""
        while True:
            record.outcomes["left"] += 1
            answer = await exchange(self.port, raw, TIMEOUT_S)
            record.outcomes["left"] -= 1
            record.judge(what, answer, (200, 400))
            await asyncio.sleep(PAUSE_S)  # a refusal must not become a storm

    async def compiles(self, record: Record) -> Probe:
        """Structured requests with schemas never seen before, beside slow grammars."""
        slow = post(CHAT, chat(guided_regex=optional_letters(62_000)), self.hostile_key)
        working = [
            asyncio.create_task(exchange(self.port, slow, TIMEOUT_S)) for _ in range(SLOW_COMPILES)
        ]
        await asyncio.sleep(PAUSE_S)
        probe = Probe("64 slow grammars", time.perf_counter())
        for number in range(COMPILES):
            name = f"p{self.rng.randrange(10**9)}"
            schema = {"type": "object", "properties": {name: {"enum": [number]}}}
            body = {"prompt": "A", "max_tokens": 1, "guided_json": schema}
            began = time.perf_counter()
            answer = await _or_closed(
                exchange(self.port, post(COMPLETION, body, self.key), TIMEOUT_S)
            )
            probe.seconds.append(time.perf_counter() - began)
            if answer.status != 200:
                record.problems.append(
                    f"a schema beside slow grammars: {answer.status} {answer.text[:200]}"
                )
        probe.ended = time.perf_counter()
        for one in working:
            record.judge("a slow grammar", await _or_closed(one), (400,))
        return probe


async def _or_closed(pending: Any) -> Answer:
    try:
        answer: Answer = await pending
    except TimeoutError:
        return Answer(0, {}, b"(no answer)", complete=False)
    except OSError as error:
        return Answer(0, {}, str(error).encode(), complete=False)
    return answer
