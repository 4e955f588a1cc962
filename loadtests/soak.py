"""Everything that clients do to a server, thousands of times: ``python -m loadtests.soak``.

Starts ``lanewise serve`` with a small cache and a short queue and sends it requests of all kinds in
bursts: streamed or not, wrong or hostile in many ways, given up at any moment. Each must get an
answer of the right kind, some the very answer that they got when nothing else ran, and in the end
the server must be as it was after warming up: no KV block in use, no more threads or open files,
and its memory within a percent.
"""

import argparse
import asyncio
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.exchange import Answer, Record, exchange, fault, post
from loadtests.hostile.bodies import BODIES
from loadtests.hostile.honest import merged, requests
from loadtests.http_stream import event_data
from loadtests.scenario import WORDS
from loadtests.server import serving

ANSWER_S = 120.0
WARM_UP_SHARE = 0.4  # of the requests: caches fill, the allocator finds its size
# Made when they are first needed: threads for texts, answers and jobs, pipes of the sandbox. What
# each request left behind would be far more.
LAZY_THREADS, LAZY_FILES = 10, 2
LARGEST_BURST = 80
MAX_SHOWN = 20  # problems
HEAD_END = b"\r\n\r\n"
# Bodies and the status that each must get; a server that is full may say so instead.
WRONG: tuple[tuple[dict[str, Any] | bytes, int], ...] = (
    (b"{", 400),
    (b"\xff\xfe", 400),
    (b"[" * 5000, 400),
    ({}, 400),
    ({"prompt": ""}, 200),  # the tokenizer's BOS is a prompt
    ({"prompt": []}, 400),
    ({"prompt": [10**9]}, 400),
    ({"prompt": "x", "temperature": -1}, 400),
    ({"prompt": "x", "min_tokens": 10**6}, 400),
    ({"prompt": "x", "priority": "high"}, 400),
    ({"prompt": "x", "n": 0}, 400),
    ({"prompt": "x", "stop": [""]}, 400),
    ({"prompt": "x", "logit_bias": {"a": 1}}, 400),
    ({"prompt": "x", "model": "another"}, 404),
    (b" " * (9 << 20), 413),
)
PATH = "/v1/completions"
KINDS = ("whole", "stream", "known", "leave", "half", "wrong")
WEIGHTS = (25, 25, 10, 20, 5, 15)
KNOWN_TOKENS = 24


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds."""

    resident_kib: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Read from ``/proc``."""
        fields = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(fields["VmRSS"].split()[0]), int(fields["Threads"]), files)


@dataclass(slots=True)
class Result:
    """What became of the requests, and of the server."""

    outcomes: Counter[str]
    warm: Usage
    end: Usage
    problems: list[str]

    @property
    def drift(self) -> float:
        """Growth of the resident memory, as a share."""
        return self.end.resident_kib / self.warm.resident_kib - 1


class Soak:
    """Sends requests to one server; ``hostile`` is their share that would hurt a careless one."""

    def __init__(self, port: int, pid: int, seed: int, hostile: float = 0.0) -> None:
        self._port = port
        self._pid = pid
        self._random = random.Random(seed)
        self._hostile = hostile
        self._attacks = [attack for kind in BODIES.values() for attack in kind]
        self._known = [(f"/v1/{path}", body) for path, body in requests(KNOWN_TOKENS)]
        self._alone: list[dict[str, Any]] = []
        self._record = Record()

    @property
    def outcomes(self) -> Counter[str]:
        """How often each kind of request got which status."""
        return self._record.outcomes

    @property
    def problems(self) -> list[str]:
        """What was wrong."""
        return self._record.problems

    async def run(self, requests: int) -> Result:
        """Send so many and compare the server with what it was after the first of them."""
        for path, body in self._known:
            answer = await exchange(self._port, post(path, body), ANSWER_S)
            self._alone.append(merged(list(event_data(answer.body))))
        await self._send(int(requests * WARM_UP_SHARE))
        warm = await self._idle_usage()
        await self._send(requests - int(requests * WARM_UP_SHARE))
        return Result(self.outcomes, warm, await self._idle_usage(), self.problems)

    async def _send(self, requests: int) -> None:
        while requests > 0:
            largest = LARGEST_BURST if self._random.random() < 0.1 else 12
            burst = min(requests, self._random.randint(1, largest))
            await asyncio.gather(*(self._one() for _ in range(burst)))
            requests -= burst

    async def _one(self) -> None:
        rng = self._random
        if rng.random() < self._hostile:
            attack = rng.choice(self._attacks)
            raw = post(attack.path, attack.make())
            await self._expect("hostile", raw, attack.accepted, attack.what)
            return
        kind = rng.choices(KINDS, WEIGHTS)[0]
        if kind == "wrong":
            body, status = rng.choice(WRONG)
            await self._expect(kind, post(PATH, body), (status,))
        elif kind == "known":
            await self._ask_known(rng.randrange(len(self._known)))
        elif kind in ("leave", "half"):
            raw = post(PATH, self._body(stream=rng.random() < 0.5))
            whole = kind == "leave"
            await self._leave(raw if whole else raw[: rng.randrange(len(raw))], whole)
        else:
            body = self._body(stream=kind == "stream")
            answer = await self._expect(kind, post(PATH, body), (200,))
            if kind == "stream" and answer is not None and answer.status == 200:
                self._check("stream", answer.body.rstrip().endswith(b"data: [DONE]"), answer)

    async def _ask_known(self, number: int) -> None:
        path, body = self._known[number]
        answer = await self._expect("known", post(path, body), (200,))
        if answer is not None and answer.status == 200:
            same = merged(list(event_data(answer.body))) == self._alone[number]
            self._check(f"another answer than alone to {body}", same, answer)

    def _check(self, what: str, right: bool, answer: Answer) -> None:
        if not right:
            self.problems.append(f"{what}: {answer.text[-200:]!r}")

    def _body(self, stream: bool) -> dict[str, Any]:
        rng = self._random
        n_words = rng.choice((1, 10, 40, 150, 300))
        start = rng.choice(
            ("", "The sea was calm that morning, and nobody had seen the ship. " * 4)
        )
        return {
            "prompt": start + " ".join(rng.choices(WORDS, k=n_words)),
            "max_tokens": rng.choice((0, 1, 8, 40)),
            "stream": stream,
            "seed": rng.randrange(100),
            "temperature": rng.choice((0, 1)),
            "n": rng.choice((1, 1, 1, 2, 4)),
            "priority": rng.choice((0, 0, 0, -1, 1)),
            "ignore_eos": rng.random() < 0.5,
            "logprobs": rng.choice((None, None, 0, 3)),
            "echo": rng.random() < 0.1,
        }

    async def _expect(
        self, kind: str, raw: bytes, statuses: tuple[int, ...], what: str = ""
    ) -> Answer | None:
        what = what or f"{kind}: {raw.partition(HEAD_END)[2][:100]!r}"
        try:
            answer = await exchange(self._port, raw, ANSWER_S)
        except (OSError, TimeoutError) as error:
            self.problems.append(f"{what}: {error or 'no answer'}")
            return None
        self.outcomes[f"{kind} {answer.status}"] += 1
        if problem := fault(answer, statuses):
            self.problems.append(f"{what}: {problem}")
        return answer

    async def _leave(self, raw: bytes, wait: bool) -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(raw)
            await writer.drain()
            await asyncio.sleep(self._random.expovariate(20) if wait else 0.0)
            writer.close()
        except OSError as error:
            self.problems.append(f"left: {error}")
        self.outcomes["left"] += 1

    async def _idle_usage(self) -> Usage:
        deadline = time.monotonic() + ANSWER_S
        while busy := await asyncio.to_thread(self._busy):
            if time.monotonic() > deadline:
                self.problems.append(f"not idle in the end: {busy}")
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # closed connections are collected
        return Usage.of(self._pid)

    def _busy(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        gauges = (
            *("vllm:num_requests_", "lanewise_kv_blocks_used", "lanewise_queued_prompt_tokens"),
            "lanewise_request_memory_bytes",
        )
        used = [line for line in lines if line.startswith(gauges) and float(line.split()[-1])]
        # The connection that asks is one.
        used += [
            line
            for line in lines
            if line.startswith("lanewise_http_connections ") and float(line.split()[-1]) > 1
        ]
        return "; ".join(used)


def soak(requests: int, seed: int, model: str | None = None, hostile: float = 0.0) -> Result:
    """Start a server, send it so many requests, and stop it."""
    room: tuple[str, ...] = (
        "--kv-memory",
        "2MiB",
        "--max-queued-requests",
        "12",
        "--max-seqs",
        "16",
    )
    room += ("--max-queued-tokens", "8000", "--log-level", "error", "--allow-high-priority", "on")
    with serving(model, room) as server:
        one = Soak(server.port, server.process.pid, seed, hostile)
        result = asyncio.run(one.run(requests))
    if result.end.threads > result.warm.threads + LAZY_THREADS:
        result.problems.append(f"threads: {result.warm.threads} became {result.end.threads}")
    if result.end.files > result.warm.files + LAZY_FILES:
        result.problems.append(f"open files: {result.warm.files} became {result.end.files}")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and report; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument("--model", help="[the bundled one]")
    parser.add_argument(
        "--drift", type=float, default=0.01, metavar="SHARE", help="of memory [%(default)s]"
    )
    parser.add_argument(
        "--hostile", type=float, default=0.05, metavar="SHARE", help="of requests [%(default)s]"
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    result = soak(options.requests, options.seed, options.model, options.hostile)
    if result.drift > options.drift:
        result.problems.append(f"memory grew by {result.drift:.2%}")
    for outcome, count in sorted(result.outcomes.items()):
        print(f"{count:7} {outcome}")
    print(f"{options.requests} requests in {time.monotonic() - began:.0f} s")
    print(f"after warming up {result.warm}, in the end {result.end}: {result.drift:+.2%} memory")
    for problem in result.problems[:MAX_SHOWN]:
        print(problem, file=sys.stderr)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
