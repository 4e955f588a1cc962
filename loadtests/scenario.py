"""Closed loop: each of N clients sends its next request when its last one is answered."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadtests.http_stream import Stream, StreamError, Target, post_stream

# Short common words: about one token each in most vocabularies, and any order of them is a prompt.
TEXT = (
    "the of and to in he was that it his her with as had she for on at by which have or from this "
    "him but all not they be were are my is me them so one said if when who there their we what an "
    "no out up into more then time could would very will man now some your do about upon old house "
    "day made long little great before other two must down only any than over such after came "
    "where never way hand eyes should like own well might good much again long night head door"
)
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Scenario:
    """What every client does."""

    model: str
    prompt_tokens: int = 128
    max_tokens: int = 64
    rounds: int = 4
    chat: bool = False
    ignore_eos: bool = True
    timeout_s: float = 600.0
    seed: int = 0

    @property
    def path(self) -> str:
        """The endpoint below ``/v1/``."""
        return "chat/completions" if self.chat else "completions"

    def body(self, prompt: str) -> dict[str, object]:
        """The JSON of one request."""
        body: dict[str, object] = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.chat:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return body


@dataclass(slots=True)
class Run:
    """Everything measured at one number of clients."""

    clients: int
    duration_s: float
    cpu_s: float
    streams: list[Stream] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Prompts:
    """Unique prompts of about the length asked for, calibrated by the server's own count."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words_per_token = 1.0
        self._extra_tokens = 0.0

    def next(self, tokens: int) -> str:
        """A prompt that no other call returns; its first words already differ."""
        count = max(1, round((tokens - self._extra_tokens) * self._words_per_token))
        return self.words(count)

    async def calibrate(self, target: Target, scenario: Scenario) -> None:
        """Find tokens per word and the tokens that a template adds, from two short requests."""
        counts = []
        sizes = (16, 128)
        for size in sizes:
            body = scenario.body(self.words(size)) | {"max_tokens": 1}
            stream = await post_stream(target, body, scenario.timeout_s)
            if stream.prompt_tokens is None:  # a server without usage: one word, one token
                return
            counts.append(stream.prompt_tokens)
        self.fit(sizes, counts)

    def words(self, count: int) -> str:
        """A text of so many words."""
        return " ".join(self._random.choices(WORDS, k=count))

    def fit(self, sizes: Sequence[int], counts: Sequence[float]) -> None:
        """Go by how many tokens two texts of so many words have had."""
        if counts[1] > counts[0]:
            self._words_per_token = (sizes[1] - sizes[0]) / (counts[1] - counts[0])
            self._extra_tokens = max(0.0, counts[0] - sizes[0] / self._words_per_token)


async def measure(target: Target, scenario: Scenario, clients: int, prompts: Prompts) -> Run:
    """One warm-up round that is not counted, then ``rounds`` requests by each client."""
    warm_up = Run(clients, 0.0, 0.0)
    await asyncio.gather(*(_client(target, scenario, prompts, 1, warm_up) for _ in range(clients)))
    wall, cpu = time.perf_counter(), time.process_time()
    run = Run(clients, 0.0, 0.0)
    await asyncio.gather(
        *(_client(target, scenario, prompts, scenario.rounds, run) for _ in range(clients))
    )
    run.duration_s = time.perf_counter() - wall
    run.cpu_s = time.process_time() - cpu
    return run


async def _client(
    target: Target, scenario: Scenario, prompts: Prompts, rounds: int, run: Run
) -> None:
    for _ in range(rounds):
        body = scenario.body(prompts.next(scenario.prompt_tokens))
        try:
            run.streams.append(await post_stream(target, body, scenario.timeout_s))
        except StreamError as error:
            run.errors[str(error)] += 1
