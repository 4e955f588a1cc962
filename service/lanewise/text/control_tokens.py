"""Keeps text that users write from becoming control tokens in a rendered chat.

Before rendering, a mark character is put into user text wherever a control token could begin. After
rendering, unmarked control tokens are the template's own; marked ones lose the mark and stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Code points that Unicode never assigns; the first that the input lacks is the mark.
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# Templates build tokens from these, as in '<|' + role + '|>'.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})

# Tags that templates look for in user text ("</think>"); no control token begins like this unless
# it is one.
TAG = r"</?[A-Za-z_]+>|\[/?[A-Z_]+\]"

SPACE = re.compile(r"\s*")
PIECE = 1 << 14  # characters


@dataclass(frozen=True)
class ControlToken:
    """A control token and whether it swallows the white space around it."""

    id: int
    text: str
    lstrip: bool
    rstrip: bool


class ControlTokens:
    """The control tokens of one vocabulary."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self.tokens = sorted(
            (token for token in tokens if token.text),
            key=lambda token: (-len(token.text), token.id),
        )
        self._by_text = {token.text: token for token in reversed(self.tokens)}
        self._lengths: dict[str, list[int]] = {}  # of the tokens that begin with a character
        for token in self.tokens:
            lengths = self._lengths.setdefault(token.text[0], [])
            if len(token.text) not in lengths:
                lengths.append(len(token.text))
        first = "".join(sorted(map(re.escape, self._lengths)))
        # One set of characters and nothing else is what a regular expression finds fast.
        self._first = f"[{first}]" if first else "(?!)"
        self._could_begin = re.compile(f"{TAG}|{self._first}" if first else self._first)

    def mark(self, value: Any, mark: str, key: str = "") -> Any:
        """Return a copy of messages, tools or any part of them, with marks in its strings."""
        if isinstance(value, str):
            if key == "role" and value in ROLES:
                return value
            return self._could_begin.sub(lambda match: self._marked(match[0], mark), value)
        if isinstance(value, Mapping):
            return {
                self.mark(name, mark): self.mark(item, mark, name) for name, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.mark(item, mark) for item in value]
        return value

    def _marked(self, found: str, mark: str) -> str:
        if len(found) > 1 and found not in self._by_text:
            return found
        return found[0] + mark + found[1:]

    def split(self, text: str, mark: str = "") -> list[str | int]:
        """Return the ids of the control tokens in a text, and the texts between them.

        What ``mark`` follows on its first character is none.
        """
        parts: list[str | int] = []
        end = 0
        for start in self._candidates(text, mark):
            token = self._at(text, start) if start >= end else None
            if token is None:
                continue
            before = text[end:start]
            if before := before.rstrip() if token.lstrip else before:
                parts.append(before)
            parts.append(token.id)
            end = start + len(token.text)
            if token.rstrip and (space := SPACE.match(text, end)):
                end = space.end()
        if end < len(text):
            parts.append(text[end:])
        return parts

    def first(self, text: str) -> int:
        """Return where the first control token begins, with the white space that it swallows."""
        for start in self._candidates(text, ""):
            if token := self._at(text, start):
                return len(text[:start].rstrip()) if token.lstrip else start
        return len(text)

    def _candidates(self, text: str, mark: str) -> Iterator[int]:
        unmarked = re.compile(f"{self._first}(?!{mark})" if mark else self._first)
        # In pieces: no other thread has the interpreter while the next match is looked for.
        for begin in range(0, len(text), PIECE):
            for match in unmarked.finditer(text, begin, begin + PIECE):
                start = match.start()
                if not mark or text[start + 1 : start + 2] != mark:
                    yield start

    def _at(self, text: str, start: int) -> ControlToken | None:
        """The longest token that begins there."""
        for length in self._lengths[text[start]]:
            if token := self._by_text.get(text[start : start + length]):
                return token
        return None


def choose_mark(values: Sequence[Any]) -> str:
    """Return a mark character that occurs nowhere in the values."""
    text = json.dumps(values, ensure_ascii=False, default=str)
    return next((mark for mark in MARKS if mark not in text), MARKS[0])


def remove_mark(text: str, mark: str) -> str:
    """Remove the mark, also where a template has escaped it as JSON does."""
    return text.replace(mark, "").replace(f"\\u{ord(mark):04x}", "")


def control_tokens(added: Mapping[int, Any], ids: Collection[int]) -> ControlTokens:
    """Return the control tokens among the added tokens of a ``tokenizers`` object."""
    return ControlTokens(
        ControlToken(
            token_id, added[token_id].content, added[token_id].lstrip, added[token_id].rstrip
        )
        for token_id in ids
    )
