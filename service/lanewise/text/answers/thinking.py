"""Reasoning between tags, before an answer's content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from lanewise.text.answers.calls import split_at


class Start(Enum):
    """What an answer begins with, as its prompt has it."""

    OPEN = "open"  # reasoning if it says so
    THOUGHT = "thought"  # reasoning: the prompt has the tag before it
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """What a family writes around its reasoning."""

    begin: str
    end: str

    def start_of(self, prompt: str) -> Start:
        """What comes after a prompt, which may end with one of the tags."""
        tail = prompt[-256:].rstrip()
        if tail.endswith(self.begin):
            return Start.THOUGHT
        return Start.CONTENT if tail.endswith(self.end) else Start.OPEN

    def continued(self, message: str) -> Start:
        """What comes after the first part of an answer."""
        is_inside = message.rfind(self.begin) > message.rfind(self.end)
        return Start.THOUGHT if is_inside else Start.CONTENT


THINK = ThinkingTags("<think>", "</think>")
SEED_THINK = ThinkingTags("<seed:think>", "</seed:think>")
MISTRAL_THINK = ThinkingTags("[THINK]", "[/THINK]")
GEMMA_THINK = ThinkingTags("<|channel>thought", "<channel|>")
COMMAND_THINK = ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")
APERTUS_THINK = ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>")


class ThinkingSplitter:
    """Takes an answer's text in pieces; tells its reasoning, without space around, from the rest.

    The rest begins without space if there was reasoning.
    """

    def __init__(self, tags: ThinkingTags, start: Start) -> None:
        self._tags = tags
        self._text = ""  # not yet understood
        self._reasoning = self._rest = ""  # found by the last push
        self._space = ""  # at the end of the reasoning so far
        states = {Start.OPEN: self._open, Start.THOUGHT: self._begun, Start.CONTENT: self._content}
        self._state: Callable[[], bool] = states[start]

    def push(self, text: str, *, last: bool = False) -> tuple[str, str]:
        """Take more text; return reasoning and other text."""
        if self._state == self._content:
            return "", text
        self._text += text
        self._reasoning = self._rest = ""
        while self._state():
            pass
        if last and self._state == self._open:
            self._rest, self._text = self._text, ""
        return self._reasoning, self._rest

    def _open(self) -> bool:
        text = self._text.lstrip()
        if text.startswith(self._tags.begin):
            self._text, self._state = text[len(self._tags.begin) :], self._begun
        elif self._tags.begin.startswith(text):
            return False
        else:
            self._state = self._content
        return True

    def _begun(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = self._thought
        return True

    def _thought(self) -> bool:
        before, found, self._text = split_at(self._text, self._tags.end)
        words = self._space + before
        shown = words.rstrip()
        self._reasoning += shown
        self._space = words[len(shown) :]
        if found:
            self._state = self._after
        return found

    def _after(self) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = self._content
        return True

    def _content(self) -> bool:
        self._rest, self._text = self._rest + self._text, ""
        return False
