"""What a hostile request is: its body and the answers that are right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
REFUSED = (400, 413)
EITHER = (200, 400, 413)  # a server may do it or say that it is too much
ASK = [{"role": "user", "content": "Name a colour."}]
DEEP = 100_000


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request: what it is, where it goes, its body and the statuses that are right.

    The body is made when it is sent, as some have megabytes; bytes are sent as they are.
    """

    what: str
    path: str
    make: Callable[[], object]
    accepted: tuple[int, ...]
    copies: int = 1  # at the same time


def chat(**fields: Any) -> dict[str, Any]:
    """A short chat with more fields."""
    return {"messages": ASK, "max_tokens": 4} | fields


def completion(**fields: Any) -> dict[str, Any]:
    """A short completion with more fields."""
    return {"prompt": "The sea", "max_tokens": 4} | fields


def with_schema(schema: object) -> dict[str, Any]:
    """A short chat whose answer has a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return chat(response_format=form)


def tool(number: int, **fields: Any) -> dict[str, Any]:
    """A tool of a name of its own."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": f"tool{number}", "parameters": parameters} | fields
    return {"type": "function", "function": function}


def called(arguments: str) -> list[dict[str, Any]]:
    """A conversation with a call of a tool in it."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [*ASK, message, {"role": "tool", "tool_call_id": "c", "content": "ok"}, *ASK]
