"""ATEM, the form of Muse Glimmer: messages to recipients, of which some are functions.

A message to "self" is reasoning, one to "user" is content. One to a function has a call between
tags, whose values are texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanewise.text.answers.calls import Tools
from lanewise.text.answers.harmony import BETWEEN, MESSAGE, RECIPIENT, START, HarmonyParser
from lanewise.text.answers.rules import ANY_TEXT, lark, symbols
from lanewise.text.answers.tagged_calls import TaggedCalls
from lanewise.text.answers.thinking import Start
from lanewise.text.chat_template import REASONING_NAMES
from lanewise.text.grammar import GrammarSource
from lanewise.text.tokenizer import Tokenizer

END, LAST = "<|eom|>", "<|eot|>"  # of a message, and of the answer's last one
TOKENS = (START, MESSAGE, END, LAST)
SELF, USER = "self", "user"
CALLS = TaggedCalls(
    "atem",
    begin="<atem:function_calls>",
    around_name=('<atem:invoke name="', '">'),
    around_key=('<atem:parameter name="', '">'),
    around_value=("", "</atem:parameter>"),
    function_end="</atem:invoke>",
    end="</atem:function_calls>",
)


def is_atem(template: str) -> bool:
    """Whether a chat template writes ATEM."""
    return CALLS.begin in template and END in template


def header(to: str) -> str:
    """What a message has between the prompt's last word and its text."""
    return f" to={to}{MESSAGE}"


def with_words_as_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for the template, which leaves out content beside calls: it becomes reasoning."""
    shown = dict(message)
    if shown.get("tool_calls") and shown.get("content"):
        name = next((name for name in REASONING_NAMES if shown.get(name)), REASONING_NAMES[0])
        shown[name] = BETWEEN.join(filter(None, (shown.get(name), shown["content"])))
        shown["content"] = ""
    return shown


def atem_grammar(
    tools: Tools,
    tokenizer: Tokenizer,
    start: Start,
    *,
    required: bool = False,
    parallel: bool = True,
    body: GrammarSource | None = None,
) -> GrammarSource:
    """The grammar of an answer that may, or must, end with calls, or with a text of ``body``."""
    again = symbols(f"{END}{START}assistant", tokenizer)
    has_body = body is not None and not required
    heads = [symbols(header(to), tokenizer) for to in (SELF, USER)[: 1 if has_body else 2]]
    text = f"{symbols(header(USER), tokenizer)} {'@body' if has_body else 'TEXT'}"
    ends = (["calls"] if tools else []) + ([] if required else [text])
    last = f"({' | '.join(ends)})"
    rules = [f"start: before* {last}", f"before: ({' | '.join(heads)}) TEXT {again}", ANY_TEXT]
    if start is not Start.OPEN:
        rest = f"TEXT {again} before* {last}"
        rules[0] = f"start: {rest}" if required or has_body else f"start: TEXT | {rest}"
    if tools:
        more = f" ({again} call)*" if parallel else ""
        rules += [f"calls: call{more}", f"call: {' | '.join(f'to_{i}' for i in range(len(tools)))}"]
        for i, name in enumerate(tools):
            begin = symbols(f"{header(name)}{CALLS.begin}", tokenizer)
            rules.append(f"to_{i}: {begin} call_{i}")
        rules += CALLS.functions(tools, tokenizer)
    made = lark(rules)
    return body.after(made.text) if body is not None and has_body else made


class AtemParser(HarmonyParser):
    """Takes an answer's text in pieces, and tells what is reasoning, what content, what a call."""

    tokens = TOKENS
    ends = (END, LAST)

    def __init__(self, start: Start, tools: Tools | None) -> None:
        super().__init__(start)
        self._reader = CALLS.parser(tools) if tools else None

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls so far."""
        return [] if self._reader is None else self._reader.calls

    def take_deltas(self) -> list[dict[str, Any]]:
        """What the last pushes added to the calls."""
        return [] if self._reader is None else self._reader.take_deltas()

    def _begin_message(self) -> None:
        found = RECIPIENT.search(self._header)
        to = found[1] if found is not None else USER
        if to == USER:
            self._begin_text("content", self._show_content)
        elif to == SELF or self._reader is None:  # a tool that was not offered: not shown
            self._begin_text("reasoning", self._show_reasoning)
        else:
            self._show = self._show_call
        self._header = ""
        self._state = self._body

    def _show_call(self, text: str) -> None:
        """What is no call in a message to a function is not shown."""
        if self._reader is not None:
            self._reader.push(text)
