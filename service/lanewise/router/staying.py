"""``keep_alive`` of Ollama's requests: how long a model stays in memory after its answer."""

import json
import math
import re

from lanewise.api.errors import BadRequestError
from lanewise.router.naming import members

PATHS = frozenset({"/api/chat", "/api/generate", "/api/embed", "/api/embeddings"})
FIELD = b'"keep_alive"'  # in few bodies: the others are not looked through
PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)?")
SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
SECONDS["h"] = 3600.0
# Of what a request may ask for: how nothing is written.
NOTHING = {"prompt": (b"null", b'""'), "messages": (b"null", b"[]")}
KEYS = {"keep_alive", *NOTHING}
ACCEPTED = 'accepted: seconds, or text such as "5m" or "1h30m"; 0 to go at once, below 0 to stay'


class Stay:
    """What a request says of its model's time in memory."""

    def __init__(self, seconds: float, *, is_goodbye: bool) -> None:
        self.seconds = seconds  # after its answer; infinity: until its memory is needed
        self.is_goodbye = is_goodbye  # it asks for nothing but that the model goes


def stay_of(path: str, body: bytes) -> Stay | None:
    """What a body says; None if it says nothing. BadRequestError for what is no time."""
    if path not in PATHS or FIELD not in body:
        return None
    found = {key: body[begin:end].strip() for key, begin, end in members(body) if key in KEYS}
    if found.get("keep_alive", b"null") == b"null":
        return None
    asks = any(found.get(name, b"null") not in nothing for name, nothing in NOTHING.items())
    seconds = _seconds(found["keep_alive"])
    is_goodbye = seconds == 0 and not asks and path in ("/api/chat", "/api/generate")
    return Stay(seconds, is_goodbye=is_goodbye)


def _seconds(written: bytes) -> float:
    try:
        value = json.loads(written)
        seconds = _of_text(value) if isinstance(value, str) else _of_number(value)
    except (ValueError, OverflowError, RecursionError):
        shown = written[:40].decode("utf-8", "replace")
        raise BadRequestError(f"keep_alive: {shown}; {ACCEPTED}", param="keep_alive") from None
    return math.inf if seconds < 0 else seconds


def _of_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(value)
    return float(value)


def _of_text(text: str) -> float:
    sign = -1.0 if text.startswith("-") else 1.0
    rest = text.removeprefix("-").removeprefix("+")
    parts = list(PART.finditer(rest))
    has_units = len(parts) == 1 or all(part[2] for part in parts)
    if not parts or not has_units or "".join(part[0] for part in parts) != rest:
        raise ValueError(text)
    return sign * sum(float(part[1]) * SECONDS[part[2] or "s"] for part in parts)
