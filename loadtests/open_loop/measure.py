"""Sends requests when they are due, and says what came of them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from loadtests.http_stream import Stream, StreamError, Target, post_stream
from loadtests.open_loop.workload import Objectives, Request, Workload
from loadtests.report import percentile
from loadtests.scenario import Prompts, Scenario

RESAMPLES = 400
ENOUGH = 0.9  # of requests are good below saturation
FEWEST = 1e-3  # requests per second that a sweep tries
REFINEMENTS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one request came to; seconds, counted from when it was due."""

    ttft_s: float
    tpot_s: float | None  # mean time of the tokens after the first; None of one token
    gaps_s: tuple[float, ...]  # between two events, as a user sees them
    e2e_s: float
    tokens: int

    def is_good(self, limits: Objectives) -> bool:
        """Whether it stayed below both."""
        tpot = self.tpot_s or 0.0
        return 1000 * self.ttft_s <= limits.ttft_ms and 1000 * tpot <= limits.tpot_ms


@dataclass(slots=True)
class Batch:
    """One round at one rate."""

    offered: int = 0
    seconds: float = 0.0  # from the first request that was due to the last one's end
    late_s: float = 0.0  # the latest that a request left after it was due: our own fault
    outcomes: list[Outcome] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and what it lies in with 95 % certainty, from resampled requests."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """All rounds of one server at one rate; milliseconds."""

    server: str
    rate: float
    offered: int
    errors: dict[str, int]
    good: Interval  # share of all that were offered
    ttft_p50: Interval
    ttft_p95: Interval
    tpot_p50: Interval
    tpot_p95: Interval
    itl_p99: float
    e2e_p95: float
    tokens_per_s: float
    late_ms: float

    @property
    def goodput(self) -> float:
        """Good requests per second."""
        return self.rate * self.good.value


def outcome_of(stream: Stream, due: float) -> Outcome:
    """The figures of a complete stream."""
    times = stream.chunk_times or [stream.ended]
    return Outcome(
        ttft_s=times[0] - due,
        tpot_s=stream.tpot_s,
        gaps_s=tuple(gap for _, gap in stream.gaps_s),
        e2e_s=stream.ended - due,
        tokens=stream.tokens,
    )


async def run_batch(
    target: Target, scenario: Scenario, prompts: Prompts, requests: Sequence[Request]
) -> Batch:
    """One round: every request leaves when it is due, however many are still being answered."""
    batch = Batch(offered=len(requests))
    texts = [prompts.next(one.prompt_tokens) for one in requests]  # not while time is measured
    began = time.perf_counter()

    async def ask(one: Request, text: str) -> None:
        due = began + one.at_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        batch.late_s = max(batch.late_s, time.perf_counter() - due)
        body = replace(scenario, max_tokens=one.output_tokens).body(text)
        try:
            stream = await post_stream(target, body, scenario.timeout_s)
            batch.outcomes.append(outcome_of(stream, due))
        except StreamError as error:
            batch.errors[str(error)] += 1

    await asyncio.gather(*map(ask, requests, texts))
    batch.seconds = time.perf_counter() - began
    return batch


def point_of(server: str, rate: float, batches: Sequence[Batch], limits: Objectives) -> Point:
    """What the rounds of one server at one rate come to."""
    outcomes = [one for batch in batches for one in batch.outcomes]
    errors: Counter[str] = Counter()
    for batch in batches:
        errors.update(batch.errors)
    offered = sum(batch.offered for batch in batches)
    good = [one.is_good(limits) for one in outcomes] + [False] * sum(errors.values())
    ttft = [1000 * one.ttft_s for one in outcomes]
    tpot = [1000 * one.tpot_s for one in outcomes if one.tpot_s is not None]
    gaps = sorted(1000 * gap for one in outcomes for gap in one.gaps_s)
    return Point(
        server=server,
        rate=rate,
        offered=offered,
        errors=dict(errors.most_common(5)),
        good=interval(good, lambda values: sum(values) / max(1, len(values))),
        ttft_p50=interval(ttft, _percentile(50)),
        ttft_p95=interval(ttft, _percentile(95)),
        tpot_p50=interval(tpot, _percentile(50)),
        tpot_p95=interval(tpot, _percentile(95)),
        itl_p99=percentile(gaps, 99) or 0.0,
        e2e_p95=percentile(sorted(1000 * one.e2e_s for one in outcomes), 95) or 0.0,
        tokens_per_s=sum(one.tokens for one in outcomes) / sum(batch.seconds for batch in batches),
        late_ms=1000 * max(batch.late_s for batch in batches),
    )


def _percentile(percent: float) -> Callable[[Sequence[float]], float]:
    return lambda values: percentile(sorted(values), percent) or 0.0


def interval(values: Sequence[float], figure: Callable[[Sequence[float]], float]) -> Interval:
    """A figure of values, and where 95 % of those of resampled values lie."""
    rng = random.Random(len(values))
    made = sorted(
        figure(rng.choices(values, k=len(values))) for _ in range(RESAMPLES if values else 0)
    )
    low, high = percentile(made, 2.5), percentile(made, 97.5)
    return Interval(figure(values), low or 0.0, high or 0.0)


async def measure_all(
    servers: dict[str, tuple[Target, Scenario]],
    workload: Workload,
    note: Callable[[Point], None],
) -> list[Point]:
    """Every server at every rate, in turns: what the machine does meanwhile hits all alike.

    Without rates each server's sweep doubles the rate until it is saturated, and then looks closer
    three times; rates that one server needs all are measured at.
    """
    prompts = {}
    for name, (target, scenario) in servers.items():
        prompts[name] = Prompts(workload.seed)
        await prompts[name].calibrate(target, scenario)
    points: list[Point] = []

    async def at(rate: float) -> list[Point]:
        batches: dict[str, list[Batch]] = {name: [] for name in servers}
        for round_ in range(workload.rounds):
            requests = workload.requests(rate, round_)
            for name, (target, scenario) in servers.items():
                batches[name].append(await run_batch(target, scenario, prompts[name], requests))
        here = [
            point_of(name, rate, done, workload.objectives)
            for name, done in batches.items()
            if any(batch.offered for batch in done)
        ]
        for point in here:
            note(point)
        points.extend(here)
        return here

    if workload.rates:
        for rate in workload.rates:
            await at(rate)
    else:
        await _sweep(at, workload.first_rate)
    return sorted(points, key=lambda point: (point.server, point.rate))


async def _sweep(at: Callable[[float], Awaitable[list[Point]]], first: float) -> None:
    good: dict[str, float] = {}  # the highest rate of each server at which it is not saturated
    bad: dict[str, float] = {}  # the lowest at which it is

    async def look(rate: float) -> None:
        for point in await at(rate):
            if point.good.value >= ENOUGH:
                good[point.server] = max(rate, good.get(point.server, rate))
            else:
                bad[point.server] = min(rate, bad.get(point.server, rate))

    rate = first
    await look(rate)
    while not good.keys() <= bad.keys():
        rate *= 2
        await look(rate)
    rate = first
    while not bad.keys() <= good.keys() and rate > FEWEST:
        rate /= 2
        await look(rate)
    for _ in range(REFINEMENTS):
        middles = {round((good[name] * bad[name]) ** 0.5, 3) for name in good.keys() & bad.keys()}
        for middle in sorted(middles):
            await look(middle)


def saturation_of(points: Sequence[Point]) -> dict[str, Point]:
    """Of each server, the highest rate up to which nine in ten requests are good at every rate."""
    found: dict[str, Point] = {}
    for point in sorted(points, key=lambda one: one.rate):
        before = [one for one in points if one.server == point.server and one.rate <= point.rate]
        if all(one.good.value >= ENOUGH for one in before):
            found[point.server] = point
    return found
