"""Whether one tenant can tell what another has asked: times and ``cached_tokens`` of 200 probes."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from loadtests.hostile.honest import merged
from loadtests.http_stream import Stream, Target, post_stream
from loadtests.scenario import WORDS

PROBES = 200
WORDS_EACH = 120  # a few blocks of the prefix cache
WORDS_ALIKE = 8
CONTROLS = 10
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Telling:
    """What a client saw of prompts that another has just used, and of ones nobody has."""

    used_s: list[float] = field(default_factory=list)  # to the first token
    fresh_s: list[float] = field(default_factory=list)
    cached_used: list[int] = field(default_factory=list)
    cached_fresh: list[int] = field(default_factory=list)
    cached_own: list[int] = field(default_factory=list)  # of its own prompts, the second time
    other_answers: int = 0

    @property
    def z(self) -> float:
        """Of the rank-sum test: how far the two times are from one distribution."""
        return rank_sum_z(self.used_s, self.fresh_s)

    def problems(self, most_z: float) -> list[str]:
        """What tells one tenant of another; ``most_z`` is how far the two times may be apart."""
        found = []
        if abs(self.z) > most_z:
            used, fresh = (1000 * statistics.median(x) for x in (self.used_s, self.fresh_s))
            found.append(
                f"first token after {used:.0f} ms where another key has asked the same, "
                f"{fresh:.0f} ms where nobody has (rank sum: z = {self.z:.1f})"
            )
        # A key's own prompts may begin alike, by a word or two; that is not the other key's.
        more = rank_sum_z([*map(float, self.cached_used)], [*map(float, self.cached_fresh)])
        if more > most_z or max(self.cached_used) > max(self.cached_fresh) + WORDS_ALIKE:
            found.append(
                f"cached_tokens up to {max(self.cached_used)} of another key's prompts, "
                f"{max(self.cached_fresh)} of new ones"
            )
        if self.other_answers:
            found.append(f"{self.other_answers} answers differ from the other key's")
        if not any(self.cached_own):
            found.append("a key's own prompt is not found in the cache: this test sees nothing")
        return found


def rank_sum_z(a: Sequence[float], b: Sequence[float]) -> float:
    """Mann and Whitney's U of ``a`` over ``b`` in standard deviations; ties share their ranks."""
    ordered = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
    rank, ranks_a, ties = 0, 0.0, 0
    for _, group in groupby(ordered, key=lambda pair: pair[0]):
        members = list(group)
        share = rank + (len(members) + 1) / 2
        ranks_a += share * sum(1 for _, which in members if which == 0)
        rank += len(members)
        ties += len(members) ** 3 - len(members)
    n, m, total = len(a), len(b), len(ordered)
    u = ranks_a - n * (n + 1) / 2
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    return (u - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0


async def tell(url: str, keys: tuple[str, str], seed: int, probes: int = PROBES) -> Telling:
    """Ask as the first key, then the same and something new as the second, in random order."""
    rng = random.Random(seed)
    ours, others = (Target.parse(url, "completions", key) for key in (keys[1], keys[0]))
    telling = Telling()

    async def ask(target: Target, prompt: str) -> Stream:
        body: dict[str, object] = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        return await post_stream(target, body, TIMEOUT_S, Stream(events=[]))

    def new() -> str:
        return " ".join(rng.choices(WORDS, k=WORDS_EACH))

    async def fresh() -> None:
        stream = await ask(ours, new())
        telling.fresh_s.append(_first(stream))
        telling.cached_fresh.append(stream.cached_tokens or 0)

    for _ in range(probes):
        prompt = new()
        first = await ask(others, prompt)
        new_first = rng.random() < 0.5
        if new_first:
            await fresh()
        stream = await ask(ours, prompt)
        telling.used_s.append(_first(stream))
        telling.cached_used.append(stream.cached_tokens or 0)
        telling.other_answers += merged(first.events or ()) != merged(stream.events or ())
        if not new_first:
            await fresh()
    for _ in range(CONTROLS):
        prompt = new()
        await ask(ours, prompt)
        telling.cached_own.append((await ask(ours, prompt)).cached_tokens or 0)
    return telling


def _first(stream: Stream) -> float:
    """Seconds to the first text; to the end where the one token is no text yet."""
    return (stream.chunk_times or [stream.ended])[0] - stream.started
