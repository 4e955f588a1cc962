"""Tools that are called with a text, as functions of one argument, which models know better."""

import json
import re

from lanewise.text.answers.values import GRAMMAR, TextGrammar

INPUT = "input"  # what models are told that the argument is called
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}
ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
PLAIN = re.compile(r'[^"\\]*')


def as_function(name: str, description: str, grammar: TextGrammar | None) -> dict[str, object]:
    """The function that stands for a tool."""
    text: dict[str, object] = {"type": "string"}
    if grammar is not None:
        text[GRAMMAR] = grammar._asdict()
        if grammar.syntax == "regex":
            text["pattern"] = f"^(?:{grammar.definition})$"
        told = f"The {INPUT} obeys this {grammar.syntax} grammar:\n{grammar.definition}"
        description = f"{description}\n{told}" if description else told
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": grammar is not None,
    }


class InputReader:
    """Reads the text out of the arguments of a call, which come in pieces of JSON."""

    def __init__(self) -> None:
        self._text = ""  # not yet understood
        self._has_begun = self._has_ended = False

    def push(self, arguments: str) -> str:
        """Take more of the JSON; return what it adds to the text."""
        self._text += arguments
        if not self._has_begun:
            head = HEAD.match(self._text)
            if head is None:
                return ""
            self._has_begun, self._text = True, self._text[head.end() :]
        made = []
        while self._text and not self._has_ended:
            plain = PLAIN.match(self._text)
            end = 0 if plain is None else plain.end()
            made.append(self._text[:end])
            self._text = self._text[end:]
            if self._text.startswith('"'):
                self._has_ended = True
            elif self._text and not self._escape(made):
                break
        return "".join(made)

    def _escape(self, made: list[str]) -> bool:
        """Read the escape at the beginning; False if it is not complete."""
        match = ESCAPE.match(self._text)
        if match is None:
            return False
        end = match.end()
        if match[1] is None:
            made.append(ESCAPES[match[2]])
        elif 0xD800 <= int(match[1], 16) < 0xDC00:  # a character in two halves
            second = ESCAPE.match(self._text, end)
            if second is None and len(self._text) < end + 6:
                return False
            end = end if second is None or second[1] is None else second.end()
            made.append(_character(self._text[:end]))
        else:
            made.append(_character(match[0]))
        self._text = self._text[end:]
        return True


def _character(escaped: str) -> str:
    text: str = json.loads(f'"{escaped}"')
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
