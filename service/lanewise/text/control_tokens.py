"""Keeps text that users write from becoming control tokens in a rendered chat.

Before rendering, a mark character is put into user text wherever a control token could begin. After
rendering, unmarked control tokens are the template's own; marked ones lose the mark and stay text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Code points that Unicode never assigns; the first that the input lacks is the mark.
MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

# Templates build tokens from these, as in '<|' + role + '|>'.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})

# Tags that templates look for in user text ("</think>"); no control token begins like this unless
# it is one.
TAG = r"</?[A-Za-z_]+>|\[/?[A-Z_]+\]"


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
        self._ids = {token.text: token.id for token in self.tokens}
        first = "".join(sorted({re.escape(token.text[0]) for token in self.tokens}))
        self._could_begin = re.compile(f"{TAG}|[{first}]" if first else "(?!)")
        alternatives = (
            (r"\s*" if token.lstrip else "")
            + f"({re.escape(token.text)})"
            + (r"\s*" if token.rstrip else "")
            for token in self.tokens
        )
        self._any = re.compile("|".join(alternatives) or "(?!)")

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
        if len(found) > 1 and found not in self._ids:
            return found
        return found[0] + mark + found[1:]

    def split(self, text: str) -> list[str | int]:
        """Return the ids of the control tokens in a text, and the texts between them."""
        parts: list[str | int] = []
        end = 0
        for match in self._any.finditer(text):
            if match.start() > end:
                parts.append(text[end : match.start()])
            parts.append(self._ids[match[match.lastindex or 0]])
            end = match.end()
        if end < len(text):
            parts.append(text[end:])
        return parts


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
