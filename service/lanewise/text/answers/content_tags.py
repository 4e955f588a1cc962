"""Tags around an answer's content, which are no part of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lanewise.text.answers.calls import split_at
from lanewise.text.answers.tags import TagReader, Tags
from lanewise.text.answers.thinking import Start


@dataclass(frozen=True, slots=True)
class ContentTags(Tags):
    """What a family writes around content, and perhaps as the first words of it."""

    label: str = ""


COMMAND_RESPONSE = ContentTags("<|START_RESPONSE|>", "<|END_RESPONSE|>")
HUNYUAN_ANSWER = ContentTags("<answer>", "</answer>")
# What templates with tools ask for where no function is called.
HUNYUAN_LABELLED = replace(HUNYUAN_ANSWER, label="助手：")


class ContentSplitter(TagReader):
    """Takes content in pieces; leaves out the tags around it, and space on their inner sides.

    The first tag and the label count where the content begins, which it need not do with them;
    the last tag where nothing but space comes after it.
    """

    def __init__(self, tags: ContentTags, start: Start) -> None:
        super().__init__(tags)
        self._label = tags.label
        self._shown = ""  # found by the last push
        self._held: list[str] = []  # space, perhaps around a tag, that may be the end
        if start is Start.MIDDLE:
            self._state = self._words

    def push(self, text: str, *, last: bool = False) -> str:
        """Take more text; return what of it is content."""
        self._text += text
        self._shown = ""
        while self._state():
            pass
        if last and self._state != self._ended:
            self._show_held()
            self._shown, self._text = self._shown + self._text, ""
        return self._shown

    def _inside(self) -> bool:
        self._state = self._content
        return True

    def _content(self) -> bool:
        if self._label:
            return self._take_sign(self._label, self._labelled, self._words)
        self._state = self._words
        return True

    def _labelled(self) -> bool:
        return self._skip_space(self._words)

    def _words(self) -> bool:
        before, found, self._text = split_at(self._text, self._tags.end)
        shown = before.rstrip()
        if shown:
            self._show_held()
            self._shown += shown
        self._held.append(before[len(shown) :])
        if found:
            self._held.append(self._tags.end)
            self._state = self._ended
        return found

    def _ended(self) -> bool:
        text = self._text.lstrip()
        if not text:
            self._held.append(self._text)
            self._text = ""
            return False
        self._show_held()
        self._state = self._words
        return True

    def _show_held(self) -> None:
        self._shown += "".join(self._held)
        self._held.clear()
