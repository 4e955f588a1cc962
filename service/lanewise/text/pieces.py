"""Long texts in pieces that have the tokens of the whole: few are in the making at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import tokenizers

AT_ONCE = 1 << 17  # characters
# A token as the library makes it, of which a text may have one for each character.
CHARACTER_BYTES = 400
TOKEN_BYTES = 40  # a number, and its place in a list
# Where a word ends and another begins: texts are cut before what is between.
PLACE = re.compile(r"(?<=[^\W\d_])[ \n](?=[^\W\d_])")
ACROSS = re.compile(rb"[A-Za-z\x80-\xff][ \n]")  # a token that lies on both sides of a place
LETTER_AT_END = re.compile(r"^[^\W\d_]|[^\W\d_]$")
WINDOW = 32  # characters on each side of a place whose tokens are compared with those of all
STRIDE = 1 << 12  # characters that are looked through at a time: the interpreter is free between
TRIES = 16  # places of a stretch

Encode = Callable[[str], list[int]]


class Room(Protocol):
    """Counts memory before it is taken; both raise where there is none."""

    def keep(self, n_bytes: int) -> None:
        """Count what stays; less than nothing gives back."""

    def passing(self, n_bytes: int) -> AbstractContextManager[None]:
        """Count what is there while the context is open."""


class Unbounded:
    """Room for anything, where no other request shares it."""

    def keep(self, n_bytes: int) -> None:
        """Nothing is counted."""

    def passing(self, n_bytes: int) -> AbstractContextManager[None]:
        """As before."""
        return nullcontext()


class Bounds(NamedTuple):
    """How much of a text's tokens is wanted, and the room there is for them."""

    most: int | None = None  # tokens after which, or soon after which, there is an end
    last: int | None = None  # only so many of the last are kept
    room: Room = Unbounded()


ALL = Bounds()


class Tokens:
    """The tokens of a text, piece by piece."""

    def __init__(self, bounds: Bounds) -> None:
        self.ids: list[int] = []
        self._bounds = bounds

    def add(self, piece: Piece, encode: Encode) -> None:
        """Add the tokens of a piece."""
        room = self._bounds.room
        with room.passing(max(0, len(piece.text) - AT_ONCE) * CHARACTER_BYTES):
            ids = encode(piece.before + piece.text)
            self.put(ids[len(encode(piece.before)) :] if piece.before else ids)

    def put(self, ids: Sequence[int]) -> None:
        """Add these tokens."""
        before, last = len(self.ids), self._bounds.last
        self.ids += ids
        if last is not None:
            del self.ids[: max(0, len(self.ids) - last)]
        self._bounds.room.keep((len(self.ids) - before) * TOKEN_BYTES)

    @property
    def are_enough(self) -> bool:
        """Whether there are more than are wanted."""
        return self._bounds.most is not None and len(self.ids) > self._bounds.most


class Piece(NamedTuple):
    """Part of a text, and the character before it, which tells that the text does not begin."""

    before: str
    text: str


class Cutter:
    """Cuts texts of one vocabulary."""

    def __init__(
        self, added: Iterable[tokenizers.AddedToken], token_bytes: Callable[[], Iterable[bytes]]
    ) -> None:
        self._token_bytes = token_bytes
        # Nothing is cut where tokens that are letters take away the space beside them. What the
        # others are is not asked before the first long text.
        self._can: bool | None = None
        if any((one.lstrip or one.rstrip) and LETTER_AT_END.search(one.content) for one in added):
            self._can = False

    def pieces(self, text: str, encode: Encode) -> Iterator[Piece]:
        """A text in order; a piece is longer than ``AT_ONCE`` where there is no place to cut it."""
        start = 0
        while len(text) - start > AT_ONCE and self._can_cut():
            end = self._place(text, start, encode)
            yield Piece(text[max(0, start - 1) : start], text[start:end])
            start = end
        if start < len(text) or not text:
            yield Piece(text[max(0, start - 1) : start], text[start:])

    def _can_cut(self) -> bool:
        if self._can is None:
            self._can = not any(map(ACROSS.search, self._token_bytes()))
        return self._can

    def _place(self, text: str, start: int, encode: Encode) -> int:
        """The last good place that makes a piece of at most ``AT_ONCE``, or else the first one."""
        most = start + AT_ONCE
        for begin in range(most - STRIDE, start + STRIDE, -STRIDE):
            found = [match.start() for match in PLACE.finditer(text, begin, begin + STRIDE)]
            for place in reversed(found[-TRIES:]):
                if _is_good(text, place, encode):
                    return place
        for begin in range(most, len(text), STRIDE):
            for match in PLACE.finditer(text, begin, begin + STRIDE):
                if _is_good(text, match.start(), encode):
                    return match.start()
                break
        return len(text)


def _is_good(text: str, place: int, encode: Encode) -> bool:
    """Whether the tokens around a place are those of its two sides."""
    left, right = text[max(0, place - WINDOW) : place], text[place : place + WINDOW]
    before = encode(left[-1])
    behind = encode(left[-1] + right)
    whole = encode(left + right)
    return behind[: len(before)] == before and encode(left) + behind[len(before) :] == whole
