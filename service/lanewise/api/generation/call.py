"""A request that has been read, on its way to an answer."""

import secrets
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starlette.types import Receive

from lanewise.api.http.limits import Hold
from lanewise.api.observing.caller import Caller
from lanewise.api.shared.state import ServerState

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """What is asked for, and all that its answer needs."""

    ask: T  # an Ask, or a body where a dialect has only one
    size: int  # bytes that it came in: what all work on it is measured by
    state: ServerState
    caller: Caller
    receive: Receive  # what the client sends after its body: that it has left
    # Of the answer; dialects put a prefix before it.
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def hold(self) -> Hold:
        """What the request makes the server hold."""
        return self.caller.hold
