"""Matches module names by regular expressions as PEFT does, but in linear time.

Python's ``re`` takes exponential time on some. The places where a match may continue are the bits
of an integer.
"""

from __future__ import annotations

import re
import string

ACCEPTED = r"letters, . \. \d \w [0-9] (a|b) ^ $, with * + ? behind one of them and ? behind (a|b)"
MAX_TOKENS = 512
LETTERS = string.ascii_letters + string.digits + "._-"
TOKEN = re.compile(r"\\[dw.]|\[\^?(?:\w-\w|[\w.])+\]|\(\?:|[\w.()|^$*+?-]")

# A character class, ^ or $, the branches of a group, or (sign, repeated node).
Node = frozenset[str] | str | list[list["Node"]] | tuple[str, "Node"]


def parse_pattern(text: str) -> Node | None:
    """Parse an expression; None if it uses unsupported syntax."""
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text or len(tokens) > MAX_TOKENS:
        return None
    groups: list[list[list[Node]]] = [[[]]]
    for token in tokens:
        if token == "|":
            groups[-1].append([])
        elif token[0] == "(":
            groups.append([[]])
        elif token == ")" and len(groups) > 1:
            branches = groups.pop()
            groups[-1][-1].append(branches)
        elif token in "*+?":
            if not _repeat(groups[-1][-1], token):
                return None
        elif token in "^$":
            groups[-1][-1].append(token)
        else:
            try:
                groups[-1][-1].append(frozenset(filter(re.compile(token).fullmatch, LETTERS)))
            except re.error:  # an unmatched ) or an invalid class
                return None
    return groups[0] if len(groups) == 1 else None


def _repeat(steps: list[Node], sign: str) -> bool:
    """Append a repetition sign to the last step; returns whether it may stand there."""
    last = steps.pop() if steps else ""
    is_lazy = isinstance(last, tuple) and sign == "?"  # lazy repetition matches the same names
    steps.append(last if is_lazy else (sign, last))
    return is_lazy or isinstance(last, frozenset) or (isinstance(last, list) and sign == "?")


def matches(pattern: Node, name: str) -> bool:
    """Return whether PEFT would match a name: all of it, or all after some dot."""
    begins = 1 | sum(2 << place for place, letter in enumerate(name) if letter == ".")
    return bool(_behind(pattern, name, begins) >> len(name))


def _behind(node: Node, name: str, places: int) -> int:
    """Return the places after a match of ``node`` that starts at any of ``places``."""
    if isinstance(node, list):
        found = 0
        for branch in node:
            at = places
            for step in branch:
                at = _behind(step, name, at)
            found |= at
        return found
    if isinstance(node, str):
        return places & (1 if node == "^" else 1 << len(name))
    if isinstance(node, frozenset):
        return (places & _where(node, name)) << 1
    sign, step = node
    if sign == "?" or not isinstance(step, frozenset):
        return places | _behind(step, name, places)
    if sign == "+":
        places = _behind(step, name, places)
    ones = _where(step, name)  # the carry of an addition moves a place past all letters that match
    return (((places & ones) + ones) ^ ones) | places


def _where(letters: frozenset[str], name: str) -> int:
    return sum(1 << place for place, letter in enumerate(name) if letter in letters)
