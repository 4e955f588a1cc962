"""Changes JSON where bytes alone would hardly ever leave JSON: one value of it at a time."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 0.5, 1e308, 5e-324, 2**31, 2**32, 2**53 + 1, 2**63, 2**64),
    *("", "a", "\x00", "\ud83d", "x" * 300, "F32", "U8", [], {}, [[]], [{}], [0, 1], [1, 0, 2]),
)


def mutate_json(text: bytes, random: Random) -> bytes:
    """The same JSON with one value changed, moved, doubled or gone; other text as it is."""
    try:
        whole = [json.loads(text)]
    except (ValueError, RecursionError):
        return text
    try:
        _change(whole, random)
        return json.dumps(whole[0]).encode()
    except (ValueError, RecursionError):  # a number of too many digits, or too deep
        return text


def _change(whole: list[Any], random: Random) -> None:
    places = list(_places(whole))
    container, key = random.choice(places)
    other, other_key = random.choice(places)
    way = random.randrange(6)
    if way == 0 and container is not whole:
        del container[key]
    elif way == 1:
        container[key] = json.loads(json.dumps(other[other_key]))
    elif way == 2 and isinstance(container, list):
        container.insert(random.randrange(len(container) + 1), container[key])
    elif way == 3 and isinstance(container[key], int):
        container[key] += random.choice((-2, -1, 1, 2, 255, 4096))
    elif way == 4:
        container[key] = random.choice(
            ([container[key]], {"": container[key]}, str(container[key]))
        )
    else:
        container[key] = random.choice(ODD)


def mutate_parts(data: bytes, separator: bytes, random: Random) -> bytes:
    """One of several JSON texts."""
    parts = data.split(separator)
    at = random.randrange(len(parts))
    parts[at] = mutate_json(parts[at], random)
    return separator.join(parts)


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    """Every value, as what holds it and where."""
    waiting = [container]
    while waiting:
        found = waiting.pop()
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield found, key
            if isinstance(value, dict | list):
                waiting.append(value)
