"""Matches names of modules by regular expressions as PEFT does, in linear time.

Python's own would take for ever on some. The places where a match may go on are bits of a number.
"""

from __future__ import annotations

import re
import string

ACCEPTED = r"letters, . \. \d \w [0-9] (a|b) ^ $, with * + ? behind one of them and ? behind (a|b)"
MOST_TOKENS = 512
LETTERS = string.ascii_letters + string.digits + "._-"
TOKEN = re.compile(r"\\[dw.]|\[\^?(?:\w-\w|[\w.])+\]|\(\?:|[\w.()|^$*+?-]")

# Letters that one place may have, ^ or $, branches of a group, or *, + or ? and what it is behind.
Node = frozenset[str] | str | list[list["Node"]] | tuple[str, "Node"]


def parse_pattern(text: str) -> Node | None:
    """Return an expression to match names by; None: it is not of what is accepted."""
    tokens = TOKEN.findall(text)
    if "".join(tokens) != text or len(tokens) > MOST_TOKENS:
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
            except re.error:  # a ) of no group, a class that ends before it begins
                return None
    return groups[0] if len(groups) == 1 else None


def _repeat(steps: list[Node], sign: str) -> bool:
    """Put a sign behind the last step; whether it may stand there."""
    last = steps.pop() if steps else ""
    is_lazy = isinstance(last, tuple) and sign == "?"  # which matches the same whole names
    steps.append(last if is_lazy else (sign, last))
    return is_lazy or isinstance(last, frozenset) or (isinstance(last, list) and sign == "?")


def matches(pattern: Node, name: str) -> bool:
    """Return whether PEFT takes a name for one that is meant: the whole, or all behind a dot."""
    begins = 1 | sum(2 << place for place, letter in enumerate(name) if letter == ".")
    return bool(_behind(pattern, name, begins) >> len(name))


def _behind(node: Node, name: str, places: int) -> int:
    """Return the places behind what a node matches, from any of ``places`` on."""
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
    ones = _where(step, name)  # an addition carries a place through all that follow it
    return (((places & ones) + ones) ^ ones) | places


def _where(letters: frozenset[str], name: str) -> int:
    return sum(1 << place for place, letter in enumerate(name) if letter in letters)
