"""What replicas are asked and answer."""

from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came; ``text`` is the beginning of its prompt, or empty."""

    method: str
    target: str  # path and query, as they were escaped
    headers: Headers
    body: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A replica has the request: first of what it answers."""


@dataclass(frozen=True, slots=True)
class Head:
    """How the answer begins: second, before its bytes."""

    status: int
    headers: Headers


class ServerGoneError(Exception):
    """A replica's server ended, or could not be reached, before it had answered to the end."""
