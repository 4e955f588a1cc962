"""Which model a request names: found in its bytes, of which nothing else is read."""

import json
import re

# What JSON is made of beside numbers, words and blanks. No group is tried twice, so that a body
# takes time by its length, whatever is in it.
TOKEN = re.compile(rb'[{}\[\]:,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
OPENING, CLOSING = b"{[", b"}]"
SMALL_BYTES = 64 << 10  # of a body that is looked through sooner than a thread takes it over
MAX_NAME = 1024  # bytes


def named_in(body: bytes, keys: tuple[str, ...] = ("model",)) -> str | None:
    """The text of the first of some keys of a JSON object; None if it has none of them.

    What is not JSON is for the model's server to refuse.
    """
    depth, key, awaits_value = 0, None, False
    for match in TOKEN.finditer(body):
        token = match[0]
        if token in OPENING:
            depth += 1
            if depth == 1 and token != b"{":
                return None
        elif token in CLOSING:
            depth -= 1
        elif depth != 1:
            continue
        elif token == b":":
            awaits_value = True
            continue
        elif token != b",":
            text = _text(token)
            if awaits_value and key in keys:
                return text
            key = text if not awaits_value else None
            if not awaits_value:
                continue
        awaits_value = False
    return None


def _text(token: bytes) -> str | None:
    if len(token) > MAX_NAME:
        return None
    try:
        text: str = json.loads(token)
    except ValueError:
        return None
    return text
