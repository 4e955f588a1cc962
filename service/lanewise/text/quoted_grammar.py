"""Grammars of texts as grammars of what those texts are inside a string of JSON.

There a quotation mark, a backslash and control characters are escapes. The library's lexer never
goes back: after a backslash that some terminal may go on with, another one cannot begin. So regular
expressions with escapes become rules, in which each escape is a token of its own, and so do the
terminals that have them.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from lanewise.text.grammar import GrammarError

TOKEN = re.compile(
    r"""
    (?P<comment>(?:\#|//)[^\n]*)
    | (?P<range>"(?:\\.|[^"\\\n])*"\s*\.\.\s*"(?:\\.|[^"\\\n])*")
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<import>%import[^\n]*)
    | (?P<ignore>%ignore[^\n]*)
    | (?P<beyond>%(?:json|lark|regex|override|declare)\b|<[^<>\s]+>|@\w+)
    | (?P<other>[^"/\#%<@]+|.)
    """,
    re.VERBOSE,
)
# Terminals of Lark's library that have characters of which inside JSON there are escapes.
COMMON = {
    "CR": r"/\r/",
    "LF": r"/\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "ESCAPED_STRING": r'/"(\\.|[^"\\])*"/',
}
IMPORT = re.compile(r"%import[ \t]+common\.(\w+)(?:[ \t]*->[ \t]*(\w+))?")
NAME = re.compile(r"\b[_A-Z][_A-Z0-9]*\b")
SHORT = {'"': '"', "\\": "\\", "\n": "n", "\t": "t", "\r": "r", "\b": "b", "\f": "f"}
SPECIAL = ['"', "\\", *map(chr, range(32))]
ORDINARY = r'[^"\\\x00-\x1f]'
QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})\??")
DEFINITION = re.compile(r"^[!?]*(\w+)(?:\.-?\d+)?(?:\[[^\]\n]*\])?\s*:", re.MULTILINE)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
CODE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]+)\})"
)
CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
GROUP = re.compile(r"\((?:\?(?::|P?<\w+>))?")


def quoted_grammar(text: str) -> str:
    """A grammar in Lark's notation, for inside a string of JSON.

    GrammarError if something in it has no such form.
    """
    text = _with_imports(text)
    definitions = _definitions(text)
    rules = _with_escapes(definitions)
    parts = []
    for match in TOKEN.finditer(text):
        if match.lastgroup == "ignore":
            parts.append(_ignored(match[0], definitions))
        elif match.lastgroup == "other":
            parts.append(NAME.sub(lambda name: _renamed(name[0], rules), match[0]))
        else:
            parts.append(_rewritten(match))
    return "".join(parts)


def _with_imports(text: str) -> str:
    """With those terminals of Lark's library written out that have escapes."""

    def written_out(line: re.Match[str]) -> str:
        source = COMMON.get(line[1])
        return line[0] if source is None else f"{line[2] or line[1]}: {source}"

    return IMPORT.sub(written_out, text)


def _definitions(text: str) -> dict[str, str]:
    """What stands for each name."""
    found = list(DEFINITION.finditer(text))
    ends = [*(match.start() for match in found[1:]), len(text)]
    return {
        match[1]: text[match.end() : end].split("%", 1)[0]
        for match, end in zip(found, ends, strict=True)
    }


def _with_escapes(definitions: dict[str, str]) -> set[str]:
    """The terminals that are none any more."""

    def has_escapes(text: str) -> bool:
        parts = (match for match in TOKEN.finditer(text) if match.lastgroup in ("regex", "range"))
        return any(_rewritten(match) != match[0] for match in parts)

    terminals = {name: text for name, text in definitions.items() if name.isupper()}
    found = {name for name, text in terminals.items() if has_escapes(text)}
    while more := {
        name
        for name, text in terminals.items()
        if name not in found and found.intersection(NAME.findall(text))
    }:
        found |= more
    return found


def _renamed(name: str, rules: set[str]) -> str:
    return f"quoted_{name.lower()}" if name in rules else name


def _rewritten(match: re.Match[str]) -> str:
    part = match[0]
    match match.lastgroup:
        case "string":
            return _string(part)
        case "range":
            ends = (json.loads(end) for end in re.split(r"\s*\.\.\s*", part))
            return _regex(f"/[{'-'.join(map(_code, ends))}]/")
        case "regex":
            return _regex(part)
        case "beyond":
            raise GrammarError(f"{part!r} cannot be used in the grammar of a tool's text")
        case _:
            return part


def _string(literal: str) -> str:
    text = literal.removesuffix("i")
    try:
        value = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text))
    except ValueError:
        raise GrammarError(f"{literal[:60]!r} is no string") from None
    inside = json.dumps(value, ensure_ascii=False)[1:-1]
    if inside != value and literal.endswith("i"):
        raise GrammarError(f"{literal[:60]!r}: escapes have no other case; write it as a regex")
    return json.dumps(inside, ensure_ascii=False) + literal[len(text) :]


def _ignored(line: str, definitions: dict[str, str]) -> str:
    """One of the things to ignore at a time, so that each is a token."""
    what = line.removeprefix("%ignore").strip()
    found = TOKEN.fullmatch(definitions.get(what, what).strip())
    if found is None or found.lastgroup not in ("regex", "string"):
        raise GrammarError(f"{line[:60]!r} has no form inside JSON")
    if found.lastgroup == "string":
        return f"%ignore {_string(found[0])}"
    source, flags = _split(found[0])
    one = [atom for atom in _atoms(QUANTIFIER.sub("", source), flags) if isinstance(atom, Atom)]
    if len(one) != 1:
        raise GrammarError(f"{line[:60]!r} has no form inside JSON")
    return f"%ignore /{one[0].regex}/{flags.replace('s', '')}"


def _split(literal: str) -> tuple[str, str]:
    """A regular expression and its flags."""
    source, _, flags = literal[1:].rpartition("/")
    if set(flags) - set("is"):
        raise GrammarError(f"a regular expression with flags {flags!r}; accepted: i, s")
    return source, flags


class Atom(NamedTuple):
    """One character of a regular expression, inside JSON."""

    ordinary: str  # a regular expression; empty: there are none
    escapes: tuple[str, ...] = ()

    @property
    def regex(self) -> str:
        """All of it."""
        return f"(?:{'|'.join(filter(None, (self.ordinary, *self.escapes)))})"

    def symbols(self, flags: str, quantifier: str) -> str:
        """The same in a rule; characters that are themselves go together."""
        more = "+" if quantifier in ("*", "+") else ""
        own = [f"/{self.ordinary}{more}/{flags}"] if self.ordinary else []
        return f"({' | '.join([*own, *(f'/{one}/' for one in self.escapes)])}){quantifier}"


def _regex(literal: str) -> str:
    source, flags = _split(literal)
    atoms = list(_atoms(source, flags))
    if not any(isinstance(atom, Atom) and atom.escapes for atom in atoms):
        return literal
    flags = flags.replace("s", "")
    made: list[str] = []
    for i, atom in enumerate(atoms):
        if isinstance(atom, Atom):
            after = atoms[i + 1] if i + 1 < len(atoms) else ""
            quantifier = after if isinstance(after, str) and QUANTIFIER.match(after) else ""
            made.append(atom.symbols(flags, quantifier.rstrip("?") or quantifier))
        elif QUANTIFIER.match(atom):
            if not isinstance(atoms[i - 1], Atom):
                made.append(atom.rstrip("?") or atom)
        else:
            made += ['""'] if atom in "|)" and made[-1:] in ([], ["("], ["|"]) else []
            made.append(atom)
    if made[-1] == "|":
        made.append('""')
    return f"({' '.join(made)})"


def _atoms(source: str, flags: str) -> Iterator[Atom | str]:
    """The characters of a regular expression, and what is between them."""
    position = 0
    while position < len(source):
        char = source[position]
        end = position + 1
        if char == "[":
            found = CLASS.match(source, position)
            if found is None:
                raise GrammarError(f"{source[position:][:60]!r} is a class without an end")
            end = found.end()
            yield _set(found[0])
        elif char == "\\":
            code = CODE.match(source, position)
            end = position + 2 if code is None else code.end()
            yield _escape(source[position:end])
        elif char == ".":
            yield _set(r"[\s\S]" if "s" in flags else r"[^\n]")
        elif char == "(":
            found = GROUP.match(source, position)
            end = position + 1 if found is None else found.end()
            if source.startswith("?", end):
                raise GrammarError(f"{source[position : end + 2]!r} has no form inside JSON")
            yield "("
        elif char in ")|":
            yield char
        elif quantifier := QUANTIFIER.match(source, position):
            end = quantifier.end()
            yield quantifier[0]
        elif char in "^$":
            raise GrammarError(f"{char!r} in a regular expression has no form inside JSON")
        else:
            yield _literal(char)
        position = end


def _escape(escape: str) -> Atom:
    code = CODE.fullmatch(escape)
    if code is not None:
        return _literal(chr(int(next(filter(None, code.groups())), 16)))
    name = escape[1:]
    if name in "dDwWsS":
        return _set(f"[{escape}]")
    if name in ESCAPED:
        return _literal(ESCAPED[name])
    if name.isalnum():
        raise GrammarError(f"{escape!r} has no form inside JSON")
    return _literal(name)


def _literal(char: str) -> Atom:
    if char in SHORT:
        return Atom("", (rf"\\{re.escape(SHORT[char])}",))
    return Atom("", (rf"\\u{ord(char):04x}",)) if char < " " else Atom(_code(char))


def _code(char: str) -> str:
    return rf"\x{{{ord(char):x}}}"


def _set(source: str) -> Atom:
    """One character of a class."""
    body = source[1:-1]
    if "[" in re.sub(r"\\.", "", body) or "&&" in body or "--" in body or "~~" in body:
        raise GrammarError(f"{source[:60]!r} has no form inside JSON: a class of classes")
    python = re.sub(r"\\[xu]\{([0-9a-fA-F]+)\}", lambda code: rf"\U{int(code[1], 16):08x}", source)
    try:
        has = re.compile(python).fullmatch
    except (re.error, OverflowError):
        raise GrammarError(f"{source[:60]!r} is no class, or has no form inside JSON") from None
    special = [char for char in SPECIAL if has(char)]
    if not special:
        return Atom(source)
    short = "".join(re.escape(SHORT[char]) for char in special if char in SHORT)
    escapes = [rf"\\[{short}]"] if short else []
    codes = [f"{ord(char):04x}" for char in special if char not in SHORT]
    escapes += [rf"\\u(?:{'|'.join(codes)})"] if codes else []
    has_more = any(has(chr(code)) for code in range(32, 0x2100) if code not in (34, 92))
    return Atom(rf"[{source}&&{ORDINARY}]" if has_more else "", tuple(escapes))
