"""Images in what a chat template gets: parts of lists, and what it writes for each.

A message's content is a text with a mark for each image until a template gets it: whatever joins
or moves texts before need not know of images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.text.template_error import ChatTemplateError

Turns = Sequence[Mapping[str, Any]]
# Some templates ask for the type, others for the key.
IMAGE: Mapping[str, Any] = {"type": "image", "image_url": ""}


@dataclass(frozen=True, slots=True)
class ImageMarks:
    """What stands for an image before a template gets a conversation, and what it writes for it."""

    mark: str  # one character, which no text has
    written_as: str  # the text of a control token

    def written(self, messages: Turns, write: Callable[[Turns], str]) -> str:
        """What a template writes, with as many of its images as there are; ChatTemplateError."""
        wanted = sum(_text(message).count(self.mark) for message in messages)
        try:
            text = write([self._listed(message) for message in messages])
            refused = None
        except ChatTemplateError as error:
            text, refused = "", error
        if text.count(self.written_as) == wanted and self.mark not in text and refused is None:
            return text
        # It reads texts alone: images stand in them.
        text = write(messages).replace(self.mark, self.written_as)
        if text.count(self.written_as) != wanted:
            raise refused or ChatTemplateError(
                f"the model's chat template does not write {self.written_as} once for each image"
            )
        return text

    def _listed(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message whose content is a list of parts, if it has images."""
        if self.mark not in _text(message):
            return message
        parts: list[Mapping[str, Any]] = []
        for part in as_parts([message])[0]["content"]:
            texts = part["text"].split(self.mark)
            for number, text in enumerate(texts):
                parts += [IMAGE] if number else []
                parts += [{"type": "text", "text": text}] if text else []
        return {**message, "content": parts}


def as_parts(messages: Turns) -> Turns:
    """Messages whose contents are lists of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _text(message: Mapping[str, Any]) -> str:
    """All text of a message's content."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else ""
