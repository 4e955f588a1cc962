"""JSON as answers have it."""

import json
from datetime import UTC, datetime
from typing import Any

dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
# The same for a string, without looking what it is.
dumps_text = json.encoder.encode_basestring

# Items that are written at a time: the interpreter is free between two such pieces.
NUMBERS_AT_ONCE = 4096
OBJECTS_AT_ONCE = 64
LINE_BREAKS = {mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}


def utc_time(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 writes them."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def one_line(text: str) -> str:
    """Events with JSON, without what is no line break for JSON but is for ``str.splitlines``.

    Clients that read a stream with httpx' ``iter_lines`` would see a line end within a string.
    """
    if text.isascii():
        return text
    for mark, escaped in LINE_BREAKS.items():
        text = text.replace(mark, escaped)
    return text


def dumps_long(value: Any) -> str:
    """As ``dumps``, which keeps the interpreter until a list of a million numbers is written."""
    if isinstance(value, dict):
        members = (f"{dumps_text(key)}:{dumps_long(item)}" for key, item in value.items())
        return "{" + ",".join(members) + "}"
    if not isinstance(value, list) or not value:
        return dumps(value)
    count = OBJECTS_AT_ONCE if isinstance(value[-1], dict | list) else NUMBERS_AT_ONCE
    starts = range(0, len(value), count)
    return "[" + ",".join(dumps(value[at : at + count])[1:-1] for at in starts) + "]"
