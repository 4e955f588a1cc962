"""Text between tags at the beginning of an answer, which comes in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tags:
    """What a family writes before and after something."""

    begin: str
    end: str


class TagReader:
    """The states of who takes text in pieces: each reads some and says whether to go on."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._text = ""  # not yet understood
        self._state: Callable[[], bool] = self._open

    def _open(self) -> bool:
        """The first tag, before which there may be space, or none."""
        return self._take_sign(self._tags.begin, self._begun, self._content)

    def _take_sign(
        self, sign: str, behind: Callable[[], bool], without: Callable[[], bool]
    ) -> bool:
        """Take a sign off, before which there may be space, and go on behind it; else without."""
        text = self._text.lstrip()
        if text.startswith(sign):
            self._text, self._state = text[len(sign) :], behind
        elif sign.startswith(text):
            return False
        else:
            self._state = without
        return True

    def _begun(self) -> bool:
        """Space behind the first tag."""
        return self._skip_space(self._inside)

    def _skip_space(self, then: Callable[[], bool]) -> bool:
        self._text = self._text.lstrip()
        if not self._text:
            return False
        self._state = then
        return True

    def _inside(self) -> bool:
        """What is between the tags."""
        raise NotImplementedError

    def _content(self) -> bool:
        """What is not, from its beginning on."""
        raise NotImplementedError
