"""Reasoning between tags, before an answer's content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lanewise.text.answers.calls import split_at
from lanewise.text.answers.tags import TagReader, Tags


class Start(Enum):
    """What an answer begins with, as its prompt has it."""

    OPEN = "open"  # reasoning if it says so
    THOUGHT = "thought"  # reasoning: the prompt has the tag before it
    CONTENT = "content"
    MIDDLE = "middle"  # content of which there is a part already

    @property
    def is_content(self) -> bool:
        """Whether no reasoning is to come."""
        return self in (Start.CONTENT, Start.MIDDLE)


@dataclass(frozen=True, slots=True)
class ThinkingTags(Tags):
    """What a family writes around its reasoning."""

    def start_of(self, prompt: str) -> Start:
        """What comes after a prompt, which may end with one of the tags."""
        tail = prompt[-256:].rstrip()
        if tail.endswith(self.begin):
            return Start.THOUGHT
        return Start.CONTENT if tail.endswith(self.end) else Start.OPEN

    def continued(self, message: str) -> Start:
        """What comes after the first part of an answer."""
        is_inside = message.rfind(self.begin) > message.rfind(self.end)
        return Start.THOUGHT if is_inside else Start.MIDDLE


THINK = ThinkingTags("<think>", "</think>")
SEED_THINK = ThinkingTags("<seed:think>", "</seed:think>")
MINIMAX_THINK = ThinkingTags("<mm:think>", "</mm:think>")
MISTRAL_THINK = ThinkingTags("[THINK]", "[/THINK]")
GEMMA_THINK = ThinkingTags("<|channel>thought", "<channel|>")
COMMAND_THINK = ThinkingTags("<|START_THINKING|>", "<|END_THINKING|>")
APERTUS_THINK = ThinkingTags("<|inner_prefix|>", "<|inner_suffix|>")


class ThinkingSplitter(TagReader):
    """Takes an answer's text in pieces; tells its reasoning, without space around, from the rest.

    The rest begins without space if there was reasoning.
    """

    def __init__(self, tags: ThinkingTags, start: Start) -> None:
        super().__init__(tags)
        self._reasoning = self._rest = ""  # found by the last push
        self._space = ""  # at the end of the reasoning so far
        states = {Start.OPEN: self._open, Start.THOUGHT: self._begun}
        self._state = states.get(start, self._content)

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

    def _inside(self) -> bool:
        before, found, self._text = split_at(self._text, self._tags.end)
        words = self._space + before
        shown = words.rstrip()
        self._reasoning += shown
        self._space = words[len(shown) :]
        if found:
            self._state = self._after
        return found

    def _after(self) -> bool:
        return self._skip_space(self._content)

    def _content(self) -> bool:
        self._rest, self._text = self._rest + self._text, ""
        return False
