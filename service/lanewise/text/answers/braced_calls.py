"""Calls in Gemma 4's words, ``call:name{key:value, …}``, whose strings stand between tokens."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from lanewise.text.answers.braced_grammar import ArgumentRules
from lanewise.text.answers.calls import (
    MAX_HEAD,
    CallFormat,
    CallParser,
    Tools,
    split_at,
)
from lanewise.text.answers.rules import calls_again, quoted, symbols
from lanewise.text.answers.values import PropertySchema
from lanewise.text.answers.values import quoted as json_text
from lanewise.text.tokenizer import Tokenizer

HEAD = re.compile(r"\s*+call:([^\s{}]++)(?=\{)")
STRUCTURE = re.compile(r"[{}\[\],:]")
PAIRS = {"{": "}", "[": "]"}
ANY = PropertySchema(True)


@dataclass(frozen=True)
class BracedCalls(CallFormat):
    """How a family writes calls: begin, name, arguments in braces, end."""

    name: str
    begin: str
    end: str
    quote: str  # before and after a string, which has no escapes
    takes_tools: bool = True

    def tags(self) -> tuple[str, ...]:
        """The texts around calls and strings."""
        return self.begin, self.end, self.quote

    def rules(self, tools: Tools, tokenizer: Tokenizer, *, parallel: bool) -> list[str]:
        """A rule for each function, and those of its arguments."""
        rules = calls_again(tools, self.begin, tokenizer, parallel=parallel)
        values = ArgumentRules(self.quote, tokenizer)
        end = symbols(self.end, tokenizer)
        for i, (name, parameters) in enumerate(tools.items()):
            rules.append(f"call_{i}: {quoted(f'call:{name}')} {values.of(parameters)} {end}")
        return rules + values.rules

    def openings(self, tools: Tools) -> tuple[str, ...]:
        """What is before names."""
        return ("call:",)

    def parser(self, tools: Tools) -> CallParser:
        """Reads values, which say of which type they are."""
        return _BracedCallParser(self)


GEMMA = BracedCalls("gemma", begin="<|tool_call>", end="<tool_call|>", quote='<|"|>')


class _Translation:
    """Makes JSON of an object that comes in pieces."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._closing: list[str] = []  # what ends the objects and lists that are open
        self._in_string = False
        self._was_string = False  # what came last
        self._word: list[str] = []  # parts of a value or key without quotes, not yet ended

    def push(self, text: str) -> tuple[str, str, bool]:
        """JSON of the next piece, what of it is not yet understood or not part of it, the end."""
        made: list[str] = []
        while text:
            if self._in_string:
                words, found, text = split_at(text, self._quote)
                made.append(json.dumps(words, ensure_ascii=False)[1:-1])
                if not found:
                    break
                made.append('"')
                self._in_string, self._was_string = False, True
            elif text.startswith(self._quote):
                made.append('"')
                text, self._in_string = text[len(self._quote) :], True
            elif self._quote.startswith(text):
                break
            elif STRUCTURE.match(text):
                made += self._structure(text[0])
                text = text[1:]
                if not self._closing:
                    return "".join(made), text, True
            else:
                text = self._part_of_word(text)
        return "".join(made), text, False

    def _part_of_word(self, text: str) -> str:
        found = STRUCTURE.search(text)
        end = len(text) if found is None else found.start()
        start = text.find(self._quote[0], 1, end)
        end = end if start < 0 else start
        self._word.append(text[:end])
        return text[end:]

    def _structure(self, char: str) -> list[str]:
        word = "".join(self._word).strip()
        self._word.clear()
        was_string, self._was_string = self._was_string, False
        if char == ":":
            return [": "] if was_string else [json_text(word), ": "]
        shown = [ANY.to_json(word)] if word else []
        if char == ",":
            return [*shown, ", "]
        if char in PAIRS:
            self._closing.append(PAIRS[char])
            return [*shown, char]
        return [*shown, self._closing.pop()]


class _BracedCallParser(CallParser):
    def __init__(self, form: BracedCalls) -> None:
        super().__init__(form.begin, openings=("call:",))
        self._form = form
        self._translation = _Translation(form.quote)

    def _head(self) -> bool:
        match = HEAD.match(self._text, 0, MAX_HEAD)
        if match is None:
            return len(self._text) >= MAX_HEAD and self._no_call(self._begin)
        self._text, self._state = self._text[match.end() :], self._arguments
        self._translation = _Translation(self._form.quote)
        self._log.start(match[1])
        return True

    def _arguments(self) -> bool:
        arguments, self._text, ended = self._translation.push(self._text)
        self._log.add(arguments)
        if ended:
            self._state = self._after
        return ended

    def _after(self) -> bool:
        """The call's end, another call, or text."""
        self._skip_space()
        if self._text.startswith(self._form.end):
            self._text = self._text[len(self._form.end) :]
            return True
        if self._text.startswith(self._begin):
            self._text, self._state = self._text[len(self._begin) :], self._announced
            return True
        if self._could_become(self._form.end, self._begin):
            return False
        return self._no_call()
