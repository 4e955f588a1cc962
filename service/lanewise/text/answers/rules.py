"""Rules of grammars in which control tokens are tokens and no text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Sized

from lanewise.text.grammar import GrammarSource
from lanewise.text.tokenizer import Tokenizer

ANY_TEXT = r"TEXT: /(.|\n)*/"
HEAD = "%llguidance {}"


def lark(rules: Sequence[str]) -> GrammarSource:
    """A grammar of rules, one of which is ``start``."""
    return GrammarSource("lark", "\n".join([HEAD, *rules]))


def quoted(text: str) -> str:
    """A text that is there as it is."""
    return json.dumps(text, ensure_ascii=False)


def symbols(text: str, tokenizer: Tokenizer) -> str:
    """A text, of which control tokens are tokens."""
    return joined(tokenizer.split_special(text))


def joined(parts: Sequence[str | int]) -> str:
    """The same of a text that is split already."""
    return " ".join(f"<[{p}]>" if isinstance(p, int) else quoted(p) for p in parts)


def text_up_to(rule: str, tag: str, tokenizer: Tokenizer, text: str = "TEXT") -> str:
    """The rule of a text and a tag, at whose first occurrence it ends: any text of ``ANY_TEXT``."""
    parts = tokenizer.split_special(tag)
    if isinstance(parts[0], int):
        return f"{rule}: {text} {joined(parts)}"
    return f"{rule}[lazy]: {text} {quoted(tag)}"


def any_call(tools: Sized) -> str:
    """The rules of all functions as alternatives: ``call_0`` is the first one's."""
    return " | ".join(f"call_{i}" for i in range(len(tools)))


def calls_again(tools: Sized, again: str, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
    """The rules of calls, of which each but the first comes after ``again``."""
    more = f" ({symbols(again, tokenizer)} call)*" if parallel else ""
    return [f"calls: call{more}", f"call: ({any_call(tools)})"]


def unlike(tag: str) -> str:
    """A regular expression of all texts that do not begin with space and a tag, or end within."""
    pattern = ""
    for i, char in reversed(list(enumerate(tag))):
        space = r"\s" if i == 0 else ""
        pattern = rf"({re.escape(char)}{pattern}|[^{re.escape(char)}{space}](.|\n)*)?"
    return rf"\s*{pattern}"
