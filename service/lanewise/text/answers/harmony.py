"""Harmony, the form of gpt-oss: messages on channels, of which some are for functions.

Its control tokens come with ``MARK`` before them, so that the same characters, written with other
tokens, are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lanewise.text.answers.calls import CallLog, Tools
from lanewise.text.answers.grammar_values import arguments_rule
from lanewise.text.answers.rules import ANY_TEXT, any_call, lark, symbols
from lanewise.text.answers.thinking import Start
from lanewise.text.chat_template import REASONING_NAMES
from lanewise.text.detokenizer import MARK
from lanewise.text.grammar import GrammarSource
from lanewise.text.tokenizer import Tokenizer

START, END, MESSAGE = "<|start|>", "<|end|>", "<|message|>"
CHANNEL, CONSTRAIN = "<|channel|>", "<|constrain|>"
RETURN, CALL = "<|return|>", "<|call|>"
TOKENS = (START, END, MESSAGE, CHANNEL, CONSTRAIN, RETURN, CALL)
ENDS = (END, RETURN, CALL)
FINAL = f"{CHANNEL}final{MESSAGE}"  # before what the user reads
FUNCTIONS = "functions."
RECIPIENT = re.compile(r"\bto=(\S+)")
MAX_HEADER = 1 << 10  # characters; the rest of a longer one is forgotten
EFFORTS = ("low", "medium", "high")
BETWEEN = "\n"  # two messages that become one


def is_harmony(template: str) -> bool:
    """Whether a chat template writes Harmony."""
    return CHANNEL in template and START in template and "analysis" in template


def harmony_start(prompt: str) -> Start:
    """What comes after a prompt: a header, if a message of the assistant is to come."""
    return Start.OPEN if prompt.endswith(START + "assistant") else Start.CONTENT


def with_one_preamble(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for the template, which refuses both reasoning and content before a call."""
    shown = dict(message)
    name = next((name for name in REASONING_NAMES if shown.get(name)), None)
    if shown.get("tool_calls") and shown.get("content") and name is not None:
        shown[name] = f"{shown[name]}{BETWEEN}{shown['content']}"
        shown["content"] = ""
    return shown


def _header(channel: str, tokenizer: Tokenizer) -> str:
    return f"{symbols(CHANNEL + channel, tokenizer)} form? {symbols(MESSAGE, tokenizer)}"


def _rules(tokenizer: Tokenizer, *channels: str) -> list[str]:
    """``before``: a message on one of some channels, which another one follows."""
    next_message = symbols(f"{END}{START}assistant", tokenizer)
    said = " | ".join(_header(name, tokenizer) for name in channels)
    return [
        f"before: ({said}) TEXT {next_message}",
        # Without the space the word would be part of the name before it.
        f'form: " "? {symbols(CONSTRAIN, tokenizer)} "json" | " json"',
        ANY_TEXT,
    ]


def harmony_calls(
    tools: Tools,
    tokenizer: Tokenizer,
    start: Start,
    *,
    required: bool,
    body: GrammarSource | None = None,
) -> GrammarSource:
    """The grammar of an answer that may, or must, end with a call, or with a text of ``body``."""
    has_body = body is not None and not required
    final = f"{_header('final', tokenizer)} {'@body' if has_body else 'TEXT'}"
    # Words before a call are content, which a text of ``body`` alone is to be.
    before = ("analysis",) if has_body else ("analysis", "commentary")
    calls = any_call(tools)
    last = f"({calls})" if required else f"({calls} | {final})"
    first = "" if start is Start.OPEN else f"TEXT {symbols(f'{END}{START}assistant', tokenizer)} "
    rules = [f"start: {first}before* {last}", *_rules(tokenizer, *before)]
    if first and not required and not has_body:
        rules[0] = f"start: TEXT | {first}before* {last}"
    for i, (name, parameters) in enumerate(tools.items()):
        to, channel = f" to={FUNCTIONS}{name}", f"{CHANNEL}commentary"
        heads = symbols(channel + to, tokenizer), symbols(to + channel, tokenizer)
        arguments = arguments_rule(parameters, len(tools))
        rules.append(
            f"call_{i}: ({' | '.join(heads)}) form? {symbols(MESSAGE, tokenizer)} {arguments}"
        )
    return body.after(lark(rules).text) if body is not None and has_body else lark(rules)


def harmony_body(body: GrammarSource, tokenizer: Tokenizer) -> GrammarSource:
    """The grammar of an answer whose content obeys a grammar."""
    rules = [f"start: before* {_header('final', tokenizer)} @body", *_rules(tokenizer, "analysis")]
    return body.after(lark(rules).text)


class HarmonyParser:
    """Takes an answer's text in pieces, and tells what is reasoning, what content, what a call."""

    tokens: tuple[str, ...] = TOKENS
    ends: tuple[str, ...] = ENDS  # of messages

    def __init__(self, start: Start) -> None:
        self._log = CallLog()
        self._text = ""  # not yet understood
        self._header = ""
        self._content = self._reasoning = ""  # found by the last push
        self._show: Callable[[str], None] = self._show_content
        self._has: set[str] = set()  # whether there was content, and reasoning
        self._needs_break: set[str] = set()  # before more of it
        self._state: Callable[[], bool] = self._first if start is Start.OPEN else self._body

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls so far."""
        return self._log.calls

    def take_deltas(self) -> list[dict[str, Any]]:
        """What the last pushes added to the calls."""
        return self._log.take_deltas()

    def push(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """Take more text; return reasoning and content."""
        self._text += text
        self._content = self._reasoning = ""
        while self._state():
            pass
        return self._reasoning, self._content

    def _next_token(self) -> tuple[str, str] | None:
        """The text before the next control token, and that token; None if there is none yet."""
        before, found, after = self._text.partition(MARK)
        if not found:
            return None
        token = next((token for token in self.tokens if after.startswith(token)), "")
        if not token and any(token.startswith(after) for token in self.tokens):
            return None
        self._text = after[len(token) :]
        return before, token

    # Each state uses up what it understands; it says whether the next one may go on.

    def _first(self) -> bool:
        """An answer begins with a header, whose first words the prompt had."""
        if " to=".startswith(self._text):
            return False
        is_header = self._text.startswith((MARK, " to="))
        self._state = self._in_header if is_header else self._body
        return True

    def _in_header(self) -> bool:
        found = self._next_token()
        if found is None:
            before, mark, rest = self._text.partition(MARK)
            self._header = (self._header + before)[:MAX_HEADER]
            self._text = mark + rest
            return False
        before, token = found
        # Words are words; of the tokens between them one means something.
        self._header += before + (f" {MARK} " if token == CHANNEL else " ")
        self._header = self._header[:MAX_HEADER]
        if token == MESSAGE:
            self._begin_message()
        elif token == START:
            self._header = ""
        return True

    def _begin_message(self) -> None:
        channel = re.match(r"\s*\w*", self._header.partition(MARK)[2])
        name = "" if channel is None else channel[0].strip()
        recipient = RECIPIENT.search(self._header)
        to = recipient[1] if recipient is not None else ""
        if to.startswith(FUNCTIONS):
            self._log.start(to.removeprefix(FUNCTIONS))
            self._show = self._log.add
        elif name == "analysis" or to:  # a tool that was not offered: not shown
            self._begin_text("reasoning", self._show_reasoning)
        else:
            self._begin_text("content", self._show_content)
        self._header = ""
        self._state = self._body

    def _begin_text(self, kind: str, show: Callable[[str], None]) -> None:
        if kind in self._has:
            self._needs_break.add(kind)
        self._show = show

    def _body(self) -> bool:
        found = self._next_token()
        if found is None:
            before, mark, rest = self._text.partition(MARK)
            self._show(before)
            self._text = mark + rest
            return False
        before, token = found
        self._show(before)
        if token == START:  # the end was left out
            self._state = self._in_header
        elif token == CHANNEL:
            self._header, self._state = MARK, self._in_header
        elif token in self.ends:
            self._state = self._between
        return True

    def _between(self) -> bool:
        """After a message: whatever comes before the next one is nothing."""
        found = self._next_token()
        if found is None:
            self._text = MARK + self._text.partition(MARK)[2] if MARK in self._text else ""
            return False
        if found[1] == START:
            self._state = self._in_header
        elif found[1] == CHANNEL:
            self._header, self._state = MARK, self._in_header
        return True

    def _show_content(self, text: str) -> None:
        self._content += self._joined("content", text)

    def _show_reasoning(self, text: str) -> None:
        self._reasoning += self._joined("reasoning", text)

    def _joined(self, kind: str, text: str) -> str:
        if not text:
            return ""
        self._has.add(kind)
        if kind in self._needs_break:
            self._needs_break.remove(kind)
            return BETWEEN + text
        return text
