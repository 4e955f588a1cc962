"""Strings that stand as they are, without quotes or escapes, as their schema wants them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lanewise.text.answers.alternatives import Parts
from lanewise.text.answers.grammar_values import in_slashes
from lanewise.text.answers.rules import text_up_to
from lanewise.text.grammar import GrammarError
from lanewise.text.tokenizer import Tokenizer

ANY = r"/(.|\n)*/"
MAX_COUNTED = 10_000  # characters: what is longer may be of any length
DAY, TIME = (
    r"[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))",
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
)
LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
HOST = rf"{LABEL}(\.{LABEL}){{0,8}}"
BYTE, GROUP = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])", "[0-9a-fA-F]{1,4}"
FORMATS = {
    "date": DAY,
    "time": TIME,
    "date-time": f"{DAY}T{TIME}",
    "duration": r"P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}[HMS])?|[0-9]{1,4}[YM]|T[0-9]{1,4}[HMS])",
    "email": rf"[a-zA-Z0-9_+-]{{1,32}}(\.[a-zA-Z0-9_+-]{{1,32}}){{0,3}}@{HOST}",
    "hostname": HOST,
    "ipv4": rf"({BYTE}\.){{3}}{BYTE}",
    "ipv6": rf"({GROUP}:){{7}}{GROUP}|({GROUP}:){{1,6}}:{GROUP}|({GROUP}:){{1,7}}:|::1?",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": r"[a-z][a-z0-9+.-]{1,16}://[a-zA-Z0-9._~:/?#@!$&'()*+,;=%-]{1,2000}",
}
# How texts begin that are read as values of other types. A lexer follows the longest: a text that
# begins so and goes on would hide the value.
BEGINS = {"number": r"\s*-?[0-9](.|\n)*", "object": r"\s*\{(.|\n)*", "array": r"\s*\[(.|\n)*"}
# What JSON schema's dialect means by these, in any alphabet.
CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" \t\r\n\f\v"}
PIECE = re.compile(r"\\(.)|(\[\^?\]?)|(\])|(\()|(\))|(\|)|(\^)|(\$)|.", re.DOTALL)


class StringRules:
    """Makes the rules of one grammar's strings, each with what ends it.

    ``tag`` is what no string has in it, because it is taken for its end there.
    """

    def __init__(self, prefix: str, end: str, tag: str, tokenizer: Tokenizer) -> None:
        self._prefix, self._end, self._tokenizer = prefix, end, tokenizer
        is_token = isinstance(tokenizer.split_special(tag)[0], int)
        self._but = [] if is_token else [rf"~/(.|\n)*{in_slashes(re.escape(tag))}(.|\n)*/"]
        self._known: dict[str, str] = {}
        self.rules: list[str] = []

    def of(self, texts: Sequence[str]) -> str:
        """The name of a rule for strings of any of some regular expressions."""
        text = " | ".join(dict.fromkeys(texts))
        name = self._known.get(text)
        if name is None:
            name = self._known[text] = f"{self._prefix}_{len(self._known)}"
            terminal = name.upper()
            self.rules.append(f"{terminal}: {text}")
            self.rules.append(text_up_to(name, self._end, self._tokenizer, terminal))
        return name

    def pattern(self, parts: Parts, others: Iterable[str] = ()) -> str:
        """All strings that obey all parts, and do not begin as values of other types do."""
        wanted = list(dict.fromkeys(piece for part in parts for piece in _pieces(part)))
        but = [f"~/{BEGINS[kind]}/" for kind in others if kind in BEGINS]
        return f"({' & '.join([*(wanted or [ANY]), *but, *self._but])})"

    @staticmethod
    def literal(text: str) -> str:
        """One string."""
        return f"/{in_slashes(re.escape(text))}/"


def says_something(schema: Mapping[str, Any]) -> bool:
    """Whether a schema has anything to say of strings."""
    return any(True for _ in _pieces(schema))


def _pieces(schema: Mapping[str, Any]) -> Iterator[str]:
    """What a string's schema says, as regular expressions that all match all of it."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    least = least if type(least) is int and least > 0 else 0
    if least > MAX_COUNTED or (type(most) is int and most < least):
        raise GrammarError(f"no string that can be enforced has {least} characters or more")
    if type(most) is int and most <= MAX_COUNTED:
        yield rf"/(.|\n){{{least},{most}}}/"
    elif least:
        yield rf"/(.|\n){{{least},}}/"
    if isinstance(schema.get("pattern"), str):
        yield f"/{in_slashes(whole_pattern(schema['pattern']))}/"
    form = schema.get("format")
    if isinstance(form, str) and form in FORMATS:
        yield f"/{in_slashes(FORMATS[form])}/"


def whole_pattern(pattern: str) -> str:
    """A regular expression of all texts in which another one is found.

    GrammarError if it asks for a beginning or end within.
    """
    branches: list[list[str]] = [[]]
    depth, in_class = 0, False
    for match in PIECE.finditer(pattern):
        escaped, opens, closes, group, group_end, bar, *_ = match.groups()
        part = match[0]
        if escaped is not None:
            part = _escape(escaped, in_class)
        elif in_class:
            in_class = not closes
            part = r"\[" if opens else part
        elif opens:
            in_class = True
        elif group:
            depth += 1
        elif group_end:
            depth -= 1
        elif bar and depth == 0:
            branches.append([])
            continue
        if part in ("^", "$") and not in_class and (part == "^" and (depth or branches[-1])):
            raise GrammarError(f"the pattern {pattern[:60]!r} asks for a beginning within")
        branches[-1].append(part)
    return "|".join(_whole_branch(parts, pattern) for parts in branches)


def _escape(char: str, in_class: bool) -> str:
    if char in "bBAzZ" and not in_class:
        raise GrammarError(f"\\{char} of a pattern cannot be enforced")
    if char in CLASSES:
        return CLASSES[char] if in_class else f"[{CLASSES[char]}]"
    if char == "/":
        return "/"
    return f"\\{char}"


def _whole_branch(parts: list[str], pattern: str) -> str:
    before = after = r"(.|\n)*"
    if parts[:1] == ["^"]:
        before, parts = "", parts[1:]
    if parts[-1:] == ["$"]:
        after, parts = "", parts[:-1]
    if "$" in parts:
        raise GrammarError(f"the pattern {pattern[:60]!r} asks for an end within")
    return f"{before}({''.join(parts)}){after}"
