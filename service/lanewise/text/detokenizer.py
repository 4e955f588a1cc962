"""Turns a stream of tokens into text: whole characters only, and stop strings held back."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lanewise.text.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes tokens one at a time; the pieces joined are what decoding them at once gives.

    With ``continues`` the tokens follow other text, so that the space with which a SentencePiece
    vocabulary starts a word is kept on the first of them. Control tokens of ``shown`` are never
    skipped.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._shown = shown
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = tokenizer.strips_leading_space and not continues
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside = False  # a character, of which the decoder holds the first bytes

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty inside a character."""
        skip = self._skip_special and self._tokenizer.is_special(token_id)
        if skip and token_id not in self._shown:
            return ""
        if not self._is_inside and (text := self._tokenizer.whole_text(token_id)):
            return self._emit(text) if self._strip_space else text
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._is_inside = bool(self._utf8.getstate()[0])
        return self._emit(text)

    def flush(self) -> str:
        """Return what an unfinished character leaves: the replacement character, or nothing."""
        return self._emit(self._utf8.decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text


class StopMatcher:
    """Finds stop strings in streamed text and holds back what could become one.

    The match that starts first wins, the shortest of those that start together, however the text
    was cut into pieces. Each character costs a constant for each stop string.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        self._searches = [_Search(stop) for stop in dict.fromkeys(stops) if stop]
        self._include_stop = include_stop
        self._held = ""
        self._found: tuple[int, str] | None = None  # where in _held, what
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what can be shown, and whether a stop string was found.

        After a match the rest is dropped.
        """
        if self.matched is not None:
            return "", True
        if not self._searches:
            return text, False
        position = len(self._held)
        self._held += text
        unfinished = position
        for char in text:
            position += 1
            for search in self._searches:
                if search.advance(char):
                    found = (position - len(search.stop), search.stop)
                    if self._found is None or (found[0], len(found[1])) < (
                        self._found[0],
                        len(self._found[1]),
                    ):
                        self._found = found
            unfinished = position - max(search.matched for search in self._searches)
            if self._found is not None and self._found[0] <= unfinished:
                return self._finish(), True
        shown = unfinished if self._found is None else min(unfinished, self._found[0])
        if not text:
            return "", False
        if self._found is not None:
            self._found = (self._found[0] - shown, self._found[1])
        ready, self._held = self._held[:shown], self._held[shown:]
        return ready, False

    def flush(self) -> str:
        """Return what was held back, when no more text comes."""
        if self.matched is not None:
            return ""
        if self._found is not None:
            return self._finish()
        held, self._held = self._held, ""
        return held

    def _finish(self) -> str:
        if self._found is None:
            raise RuntimeError("no stop string was found")
        start, stop = self._found
        text = self._held[: start + len(stop) if self._include_stop else start]
        self.matched, self._held = stop, ""
        return text


class _Search:
    """Knuth-Morris-Pratt search for one stop string."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0  # characters of the stop string that the text so far ends with
        self._fallback = [0] * len(stop)
        for end in range(1, len(stop)):
            length = self._fallback[end - 1]
            while length and stop[end] != stop[length]:
                length = self._fallback[length - 1]
            self._fallback[end] = length + (stop[end] == stop[length])

    def advance(self, char: str) -> bool:
        """Take one character; return whether it completes the stop string."""
        while self.matched and self.stop[self.matched] != char:
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] == char:
            self.matched += 1
        if self.matched < len(self.stop):
            return False
        self.matched = self._fallback[-1]
        return True
