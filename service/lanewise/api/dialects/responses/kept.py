"""What a request refers to of answers that are kept: measured first, then read one at a time."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from lanewise.api.dialects.responses.asking import not_kept
from lanewise.api.dialects.responses.items import JsonItem
from lanewise.api.dialects.responses.schema import ItemReference, MessageItem, ResponsesRequest
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.writing import dumps, dumps_long
from lanewise.api.http.limits import Hold
from lanewise.api.shared.request_budgets import PART_BYTES, Parts, check_count
from lanewise.api.shared.response_store import Stored
from lanewise.api.shared.state import ServerState

SHOWN = 80  # characters of an id
AT_ONCE = 512  # items that are read and written at a time: the interpreter is free between


class Kept:
    """The conversation before a request, and items by their ids, of one client."""

    def __init__(self, state: ServerState, key: int, hold: Hold) -> None:
        self._responses, self._key, self._hold = state.responses, key, hold
        self._most = state.request_budgets.max_messages
        self._previous: Stored | None = None
        self._wanted: dict[str, set[str]] = {}  # ids of items, by the answer that has them
        self._answers: dict[str, Stored] = {}
        self._known: dict[str, JsonItem] = {}
        self._n_items = 0  # of the whole conversation, with parts of contents

    def look_up(self, body: ResponsesRequest) -> int:
        """Bytes of all that a request refers to; BadRequestError if it brings too many items."""
        if body.previous_response_id is not None:
            self._previous = self._find_answer(body.previous_response_id)
            self._count(self._previous.n_items)
        for i, item in enumerate(body.input if isinstance(body.input, list) else ()):
            if isinstance(item, ItemReference):
                self._count(1)
                self._look_up_item(i, item.id)
            else:
                self._count(_n_parts(item))
        sizes = (stored.size for stored in self._answers.values())
        return sum(sizes) + (0 if self._previous is None else self._previous.size)

    def before(self) -> list[JsonItem]:
        """The items of the conversation that the request goes on with."""
        if self._previous is None:
            return []
        self._hold.keep(self._previous.n_bytes)
        return all_items(self._previous)

    def read(self) -> None:
        """Find the items that are referred to; of an answer nothing else stays."""
        for answer, stored in self._answers.items():
            with self._hold.passing(stored.parsed_bytes):
                self._take(stored, self._wanted[answer])

    def _take(self, kept: Stored, wanted: set[str]) -> None:
        names = [dumps(name).encode("utf-8", "replace") for name in wanted]
        for some in _lists(kept):
            if not any(name in some for name in names):
                continue
            for item in _items(some):
                if item["id"] in wanted:
                    self._hold.keep(_held_bytes(item))
                    self._known[item["id"]] = item

    def item(self, name: str) -> JsonItem | None:
        """One of them; every time it is part of the conversation its texts are made again."""
        found = self._known.get(name)
        if found is not None:
            self._hold.keep(_held_bytes(found))
            self._count(_n_parts_of(found) - 1)
        return found

    def _look_up_item(self, i: int, name: str) -> None:
        answer = "resp_" + name.partition("_")[2][:-4]  # an id tells whose it is
        if answer not in self._answers:
            found = self._responses.get(self._key, answer)
            if found is None:
                raise not_kept(i, name)
            self._answers[answer] = found
        self._wanted.setdefault(answer, set()).add(name)

    def _find_answer(self, name: str) -> Stored:
        found = self._responses.get(self._key, name)
        if found is None:
            raise BadRequestError(
                f"previous_response_id: a response {name[:SHOWN]!r} is not kept here: it was made"
                " with store: false, with another API key or too long ago; send its items as input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return found

    def _count(self, more: int) -> None:
        self._n_items += more
        check_count("input", "items and parts of them", self._n_items, self._most)


def stored(response: Any, items: list[JsonItem]) -> Stored:
    """An answer and all that was before it, to be kept."""
    starts = range(0, len(items), AT_ONCE)
    texts = [dumps_long(response), *(dumps_long(items[at : at + AT_ONCE]) for at in starts)]
    # An unpaired surrogate, which JSON can have and UTF-8 cannot, is no reason to keep nothing.
    written = [text.encode("utf-8", "replace") for text in texts]
    parts = [Parts.of(text) for text in texts]
    size = sum(text.__sizeof__() for text in texts)
    return Stored(
        written[0],
        tuple(written[1:]),
        n_items=sum(map(_n_parts_of, (*items, *response["output"]))),
        parsed_bytes=size + sum(part.parsed_bytes for part in parts),
        n_bytes=size + sum(part.n_bytes for part in parts),
    )


def all_items(kept: Stored) -> list[JsonItem]:
    """The items of an answer and of all that was before it."""
    return [item for some in _lists(kept) for item in _items(some)]


def items_before(kept: Stored) -> list[JsonItem]:
    """The items of all that was before an answer."""
    return [item for some in kept.items for item in _items(some)]


def _lists(kept: Stored) -> Iterator[bytes]:
    yield from kept.items
    yield kept.response


def _items(some: bytes) -> list[JsonItem]:
    """The items of a list, or of an answer."""
    parsed = json.loads(some)
    items: list[JsonItem] = parsed["output"] if isinstance(parsed, dict) else parsed
    return items


def _n_parts(item: Any) -> int:
    content = item.content if isinstance(item, MessageItem) else getattr(item, "output", None)
    return 1 + (len(content) if isinstance(content, list) else 0)


def _n_parts_of(item: JsonItem) -> int:
    return 1 + len(item.get("content") or ())


def _held_bytes(value: Any) -> int:
    """What a value of JSON takes."""
    if isinstance(value, str):
        return PART_BYTES.strings + value.__sizeof__()
    if isinstance(value, dict | list):
        inside: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return (
            PART_BYTES.containers + PART_BYTES.members * len(value) + sum(map(_held_bytes, inside))
        )
    return PART_BYTES.values
