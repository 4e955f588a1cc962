"""What comes when: a scenario of TOML, and the requests of one rate and round."""

import csv
import math
import random
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

ARRIVALS = ("poisson", "constant", "trace")


class ScenarioError(ValueError):
    """A scenario cannot be used; the message names the file, the field and what is accepted."""


class Request(NamedTuple):
    """One request."""

    at_s: float  # after the beginning
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a request that counts as good stays below: milliseconds."""

    ttft_ms: float = 2000.0
    tpot_ms: float = 200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is asked of a server, at which rates."""

    name: str
    seconds: float = 60.0  # in which requests come, at each rate in each round
    rounds: int = 3
    rates: tuple[float, ...] = ()  # requests per second; none: a sweep to the saturation point
    first_rate: float = 0.5  # of a sweep
    arrivals: str = "poisson"
    trace: Path | None = None  # CSV with columns at_s, prompt_tokens, output_tokens
    prompt_tokens: tuple[int, int] = (128, 128)  # from, to: equally likely on a log scale
    output_tokens: tuple[int, int] = (64, 64)
    chat: bool = True
    seed: int = 0
    timeout_s: float = 600.0
    objectives: Objectives = Objectives()

    def requests(self, rate: float, round_: int) -> list[Request]:
        """Those of one rate and round, the same for every server that is measured.

        Of a trace, times are stretched or shrunk to the rate.
        """
        rng = random.Random(f"{self.seed} {rate:g} {round_}")
        if self.trace is not None:
            return _scaled(read_trace(self.trace), rate, self.seconds)
        made: list[Request] = []
        at = 0.0
        while True:
            at += rng.expovariate(rate) if self.arrivals == "poisson" else 1 / rate
            if at >= self.seconds:
                return made
            sizes = (_drawn(rng, *limits) for limits in (self.prompt_tokens, self.output_tokens))
            made.append(Request(at, *sizes))


def _drawn(rng: random.Random, low: int, high: int) -> int:
    return low if low == high else round(math.exp(rng.uniform(math.log(low), math.log(high))))


def _scaled(trace: list[Request], rate: float, seconds: float) -> list[Request]:
    factor = len(trace) / (trace[-1].at_s - trace[0].at_s or 1.0) / rate
    moved = [one._replace(at_s=(one.at_s - trace[0].at_s) * factor) for one in trace]
    return [one for one in moved if one.at_s < seconds]


def read_trace(path: Path) -> list[Request]:
    """The requests of a CSV file, in order of time."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    try:
        found = [
            Request(float(row["at_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ScenarioError(
            f"{path}: {error}; accepted: columns at_s, prompt_tokens, output_tokens"
        ) from None
    if not found:
        raise ScenarioError(f"{path}: it has no requests")
    return sorted(found)


def read_workload(path: Path) -> Workload:
    """A scenario; ScenarioError says what is wrong with it."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from None
    objectives = _made(Objectives, given.pop("objectives", {}), path)
    if "trace" in given:
        given["trace"] = path.parent / str(given["trace"])
        given.setdefault("arrivals", "trace")
    given = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
    made: Workload = _made(Workload, {"name": path.stem, **given, "objectives": objectives}, path)
    _check(made, path)
    return made


def _made(kind: type[Any], given: Mapping[str, Any], path: Path) -> Any:
    known = [field.name for field in fields(kind)]
    if unknown := [key for key in given if key not in known]:
        raise ScenarioError(f"{path}: {unknown[0]} is unknown; accepted: {', '.join(known)}")
    return kind(**given)


def _check(one: Workload, path: Path) -> None:
    def refuse(field: str, value: object, accepted: str) -> None:
        raise ScenarioError(f"{path}: {field} is {value!r}; accepted: {accepted}")

    if one.arrivals not in ARRIVALS or (one.arrivals == "trace") != (one.trace is not None):
        refuse("arrivals", one.arrivals, "poisson, constant, or trace with a `trace` file")
    for field in ("seconds", "first_rate", "timeout_s"):
        value = getattr(one, field)
        if not isinstance(value, int | float) or value <= 0:
            refuse(field, value, "a number above 0")
    if not isinstance(one.rounds, int) or one.rounds < 1:
        refuse("rounds", one.rounds, "a whole number from 1")
    if not all(isinstance(rate, int | float) and rate > 0 for rate in one.rates):
        refuse("rates", one.rates, "numbers above 0, or none for a sweep")
    for field in ("prompt_tokens", "output_tokens"):
        value = getattr(one, field)
        is_range = isinstance(value, tuple) and len(value) == 2
        if not is_range or not all(isinstance(n, int) and n >= 1 for n in value):
            refuse(field, value, "[from, to], whole numbers from 1")
