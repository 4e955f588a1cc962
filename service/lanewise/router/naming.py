"""Which model a request names: found in its bytes, of which nothing else is read."""

import json
import re
from collections.abc import Iterator

# What JSON is made of beside numbers, words and blanks. No group is tried twice, so that a body
# takes time by its length, whatever is in it.
TOKEN = re.compile(rb'[{}\[\]:,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
OPENING, CLOSING = b"{[", b"}]"
SMALL_BYTES = 64 << 10  # of a body that is looked through sooner than a thread takes it over
MAX_NAME = 1024  # bytes


def members(body: bytes) -> Iterator[tuple[str | None, int, int]]:
    """The members of a JSON object: their names, and where their values begin and end.

    What is not JSON is for the model's server to refuse.
    """
    depth, key, begin = 0, None, 0
    for match in TOKEN.finditer(body):
        token = match[0]
        if token in OPENING:
            depth += 1
            if depth == 1 and token != b"{":
                return
        elif depth == 1 and (token == b"," or token in CLOSING):
            if begin:
                yield key, begin, match.start()
            key, begin = None, 0
        elif depth == 1 and token == b":":
            begin = match.end()
        elif depth == 1 and not begin:
            key = _text(token)
        if token in CLOSING:
            depth -= 1
    if begin:
        yield key, begin, len(body)


def named_in(body: bytes, keys: tuple[str, ...] = ("model",)) -> str | None:
    """The text of the first of some keys of a JSON object; None if it has none of them."""
    for key, begin, end in members(body):
        if key in keys:
            return _text(body[begin:end].strip())
    return None


def _text(token: bytes) -> str | None:
    if len(token) > MAX_NAME:
        return None
    try:
        text = json.loads(token)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
