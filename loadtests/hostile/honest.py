"""Honest clients: streams whose answers are known, sent over and over beside everything else."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

from loadtests.http_stream import DONE, Stream, StreamError, Target, post_stream
from loadtests.report import percentile
from loadtests.scenario import TEXT

TIMEOUT_S = 120.0
PAUSE_S = 0.05  # after a failure
STOP_S = 150.0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
STORY = "It was a dark night, and the old house by the sea had one lamp in its window. "


def requests(tokens: int) -> list[tuple[str, dict[str, Any]]]:
    """Endpoints and bodies: greedy and seeded, text, chat and structured, each streamed."""
    user = [{"role": "user", "content": "Tell me about a ship that came home."}]
    drawn: dict[str, Any] = {"temperature": 0.9, "seed": 11}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("completions", {"prompt": STORY, "temperature": 0}),
        ("completions", {"prompt": STORY * 3, "logprobs": 2} | drawn),
        ("completions", {"prompt": TEXT, "top_p": 0.9, "presence_penalty": 0.5} | drawn),
        ("chat/completions", {"messages": user, "temperature": 0, "logprobs": True}),
        ("chat/completions", {"messages": user, "top_k": 40} | drawn),
        ("completions", {"prompt": "Somebody:", "guided_json": SCHEMA} | drawn),
    ]
    stream: dict[str, Any] = {"stream": True, "max_tokens": tokens}
    return [
        (path, body | stream | ({} if "guided_json" in body else {"ignore_eos": True}))
        for path, body in asked
    ]


@dataclass(frozen=True, slots=True)
class Answered:
    """One honest request: which, when, what came and at which times its chunks arrived."""

    number: int
    began: float
    ended: float
    answer: object  # None after an error
    error: str | None
    chunk_times: tuple[float, ...]


def merged(events: Sequence[bytes]) -> dict[str, Any]:
    """What a stream's chunks say together, however the tokens were spread over them."""
    texts: list[str] = []
    logprobs: list[Any] = []
    reasons: list[str] = []
    for event in events:
        if event == DONE:
            continue
        for choice in json.loads(event).get("choices", ()):
            delta = choice.get("delta", choice)
            texts.append(delta.get("text") or delta.get("content") or "")
            given = choice.get("logprobs") or {}
            logprobs += given.get("token_logprobs") or given.get("content") or []
            reasons += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return {"text": "".join(texts), "logprobs": logprobs, "reasons": reasons}


def difference(got: object, alone: object) -> str:
    """Where two answers part, in words."""
    ours, theirs = (json.dumps(answer, ensure_ascii=False) for answer in (got, alone))
    at = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if len({*pair}) > 1), 0)
    return f"from character {at} it says {ours[at : at + 40]!r}, alone {theirs[at : at + 40]!r}"


class Clients:
    """Sends the requests above, each client with a key of its own."""

    def __init__(self, url: str, keys: Sequence[str], tokens: int) -> None:
        self._bodies = requests(tokens)
        self._targets = [
            {path: Target.parse(url, path, key) for path, _ in self._bodies} for key in keys
        ]

    async def alone(self) -> list[object]:
        """The answer to each request while nothing else runs; StreamError if there is none."""
        answers = []
        for number in range(len(self._bodies)):
            answered = await self._one(0, number)
            if answered.error:
                raise StreamError(f"an honest request alone: {answered.error}")
            answers.append(answered.answer)
        return answers

    async def until(self, stop: Event) -> list[Answered]:
        """All of them over and over, by every client, until somebody says stop."""
        answered: list[Answered] = []

        async def client(which: int) -> None:
            number = which * 2
            while not stop.is_set():
                one = await self._one(which, number % len(self._bodies))
                answered.append(one)
                if one.error:
                    await asyncio.sleep(PAUSE_S)
                number += 1

        await asyncio.gather(*(client(which) for which in range(len(self._targets))))
        return answered

    async def _one(self, client: int, number: int) -> Answered:
        path, body = self._bodies[number]
        stream = Stream(events=[])
        error, answer, began = None, None, time.perf_counter()
        try:
            await post_stream(self._targets[client][path], body, TIMEOUT_S, stream)
            answer = merged(stream.events or ())
        except StreamError as failure:
            error = str(failure)
        ended = time.perf_counter()
        return Answered(number, began, ended, answer, error, tuple(stream.chunk_times))


@dataclass(frozen=True, slots=True)
class Crowd:
    """What honest clients got."""

    answered: Sequence[Answered]
    expected: Sequence[object]

    def wrong(self, begin: float, end: float) -> list[str]:
        """What was wrong with those that ended in a span of time."""
        return [
            f"honest request {one.number}: {one.error or difference(one.answer, expected)}"
            for one in self.answered
            if begin <= one.ended < end
            and (one.answer != (expected := self.expected[one.number]) or one.error)
        ]

    def gaps_ms(self, begin: float, end: float) -> list[float]:
        """Ascending times between two tokens that ended in a span of time."""
        return sorted(
            1000 * (later - earlier)
            for one in self.answered
            for earlier, later in pairwise(one.chunk_times)
            if begin <= later < end
        )

    def gap_p99_ms(self, begin: float, end: float) -> float | None:
        """What 99 of 100 of them did not exceed."""
        return percentile(self.gaps_ms(begin, end), 99)


class CrowdProcess:
    """The process, from outside."""

    def __init__(self, expected: Sequence[object], stop: Event, results: Connection) -> None:
        self._stop = stop
        self._results = results
        self.crowd = Crowd((), expected)

    def finish(self) -> Crowd:
        """Let the requests that run come to their end, and take all answers."""
        self._stop.set()
        if self._results.poll(STOP_S):
            self.crowd = Crowd(self._results.recv(), self.crowd.expected)
        return self.crowd


@contextmanager
def crowd(
    url: str, keys: Sequence[str], tokens: int, expected: Sequence[object]
) -> Iterator[CrowdProcess]:
    """A process of honest clients that run while this is open."""
    context = get_context("spawn")
    stop = context.Event()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=_clients, args=(url, tuple(keys), tokens, stop, theirs), daemon=True
    )
    process.start()
    try:
        yield CrowdProcess(expected, stop, ours)
    finally:
        process.kill()
        process.join()


def _clients(
    url: str, keys: tuple[str, ...], tokens: int, stop: Event, results: Connection
) -> None:
    results.send(asyncio.run(Clients(url, keys, tokens).until(stop)))
