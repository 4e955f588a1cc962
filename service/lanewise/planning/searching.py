"""Which machines hold a goal: so many users, and how long each waits at most."""

from dataclasses import dataclass
from typing import Any

from lanewise.host import HostError
from lanewise.planning.machines import Instance
from lanewise.planning.report import Asked, Planned, report_of

ARM = "neoverse"  # how the names of Arm's cores begin


@dataclass(frozen=True, slots=True)
class Goal:
    """What all users must get; times in milliseconds, None: any."""

    itl: float | None  # between two tokens, on average
    ttft: float | None  # to the first token, in 95 of 100 requests
    arch: str  # any, arm or x86


def is_of(instance: Instance, arch: str) -> bool:
    """Whether a machine is of a kind."""
    return arch == "any" or (arch == "arm") == instance.core.startswith(ARM)


def holding(planned: Planned, asked: Asked, goal: Goal) -> dict[str, Any] | None:
    """What a machine gives if it holds the goal for every number of users, else None."""
    try:
        report = report_of(planned, asked)
    except HostError:  # not one conversation fits
        return None
    if not all(_holds(row, goal) for row in report["users"]):
        return None
    instance, most = planned.instance, report["users"][-1]
    assert instance is not None
    return {
        "name": instance.name,
        "core": instance.core,
        "cores": instance.cores,
        "memory_bytes": instance.memory_bytes,
        "usd_hour": None if asked.price is None else asked.price.usd_hour,
        "users": most["clients"],
        "first_token_p95_s": most["first_token_p95_s"],
        "between_tokens_s": most["between_tokens_s"],
        "tokens_s": most["tokens_s"],
        "usd_per_million_tokens": most["usd_per_million_tokens"],
        "estimates": list(instance.estimates),
    }


def _holds(row: dict[str, Any], goal: Goal) -> bool:
    between, first = 1000 * row["between_tokens_s"], 1000 * row["first_token_p95_s"]
    is_slow = (goal.itl is not None and between > goal.itl) or (
        goal.ttft is not None and first > goal.ttft
    )
    return bool(row["fits"]) and not is_slow
