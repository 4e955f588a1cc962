"""Everything that clients do to a server, thousands of times: ``python -m loadtests.soak``.

Starts ``lanewise serve`` with a small cache and a short queue and sends it requests of all kinds in
bursts: streamed or not, wrong in many ways, given up at any moment. Each must get an answer of the
right kind, and in the end the server must be as it was after warming up: no KV block in use, no
more threads or open files, and its memory within a percent.
"""

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.scenario import WORDS

ANSWER_S = 120.0
WARM_UP_SHARE = 0.4  # of the requests: caches fill, the allocator finds its size
LAZY_THREADS = 1  # the second of two for long texts, made when it is first needed
LARGEST_BURST = 80
MOST_SHOWN = 20  # problems
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
    ({"prompt": "x", "max_tokens": 10**6}, 400),
    ({"prompt": "x", "priority": "high"}, 400),
    ({"prompt": "x", "n": 0}, 400),
    ({"prompt": "x", "stop": [""]}, 400),
    ({"prompt": "x", "logit_bias": {"a": 1}}, 400),
    ({"prompt": "x", "model": "another"}, 404),
    (b" " * (9 << 20), 413),
)
BUSY = (429, 503)


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
    """Sends requests to one server."""

    def __init__(self, port: int, pid: int, seed: int) -> None:
        self._port = port
        self._pid = pid
        self._random = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []

    async def run(self, requests: int) -> Result:
        """Send so many and compare the server with what it was after the first of them."""
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
        kind = rng.choices(("whole", "stream", "leave", "half", "wrong"), (30, 30, 20, 5, 15))[0]
        if kind == "wrong":
            body, status = rng.choice(WRONG)
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            await self._expect(kind, raw, (status, *BUSY))
            return
        body = self._body(stream=kind == "stream" or rng.random() < 0.5)
        raw = json.dumps(body).encode()
        if kind == "leave":
            await self._leave(raw, rng.expovariate(20))
        elif kind == "half":
            await self._leave(raw, 0.0, sent=rng.randrange(len(raw)))
        else:
            await self._expect(kind, raw, (200, *BUSY), done=bool(body["stream"]))

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
        self, kind: str, raw: bytes, statuses: tuple[int, ...], done: bool = False
    ) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(_head(len(raw)) + raw)
                    answer = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            self.problems.append(f"{kind}: {raw[:100]!r}: {error or 'no answer'}")
            return
        head, _, text = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        self.outcomes[f"{kind} {status}"] += 1
        complete = not done or status != 200 or b"data: [DONE]" in text
        if status not in statuses or not complete or (b'{"error"' in text and status == 200):
            self.problems.append(f"{kind}: {raw[:100]!r}: {status} {text[-200:]!r}")

    async def _leave(self, raw: bytes, after_s: float, sent: int | None = None) -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(_head(len(raw)) + raw[:sent])
            await writer.drain()
            await asyncio.sleep(after_s)
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
        gauges = ("vllm:num_requests_", "lanewise_kv_blocks_used", "lanewise_queued_prompt_tokens")
        used = [line for line in lines if line.startswith(gauges) and float(line.split()[-1])]
        return "; ".join(used)


def _head(length: int) -> bytes:
    return (
        "POST /v1/completions HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@contextmanager
def _server(model: str | None, options: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Port and process of a server with little room, so that everything runs out."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [sys.executable, "-m", "lanewise", "serve", "--port", str(port), *options]
    command += ["--log-level", "error", *([model] if model else [])]
    process = subprocess.Popen(command)
    try:
        while process.poll() is None and not _answers(port):
            time.sleep(0.1)
        if process.poll() is not None:
            raise OSError(f"the server ended with status {process.returncode}")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready").close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def soak(requests: int, seed: int, model: str | None = None) -> Result:
    """Start a server, send it so many requests, and stop it."""
    room = ("--kv-memory", "2MiB", "--max-queued-requests", "48", "--max-seqs", "16")
    with _server(model, (*room, "--max-queued-tokens", "8000")) as (port, pid):
        result = asyncio.run(Soak(port, pid, seed).run(requests))
    if result.end.threads > result.warm.threads + LAZY_THREADS:
        result.problems.append(f"threads: {result.warm.threads} became {result.end.threads}")
    if result.end.files > result.warm.files:
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
    options = parser.parse_args(arguments)
    began = time.monotonic()
    result = soak(options.requests, options.seed, options.model)
    if result.drift > options.drift:
        result.problems.append(f"memory grew by {result.drift:.2%}")
    for outcome, count in sorted(result.outcomes.items()):
        print(f"{count:7} {outcome}")
    print(f"{options.requests} requests in {time.monotonic() - began:.0f} s")
    print(f"after warming up {result.warm}, in the end {result.end}: {result.drift:+.2%} memory")
    for problem in result.problems[:MOST_SHOWN]:
        print(problem, file=sys.stderr)
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
