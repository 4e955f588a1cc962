"""Turns a stream of tokens into text: whole characters only, and stop strings held back."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lanewise.text.tokenizer import Tokenizer


# Stands before the text of a control token where somebody has to tell it from the same characters
# written otherwise: a lone surrogate, which no text of a model has in it.
MARK = "\udc00"


class StreamDecoder:
    """Decodes tokens one at a time; the pieces joined are what decoding them at once gives.

    With ``continues`` the tokens follow other text, so that the space with which a SentencePiece
    vocabulary starts a word is kept on the first of them. Control tokens of ``shown`` are never
    skipped; with ``marked`` they have ``MARK`` before them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        continues: bool = False,
        shown: Collection[int] = (),
        marked: bool = False,
    ) -> None:
        self._shown = shown
        self._mark = MARK if marked else ""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip_space = tokenizer.strips_leading_space and not continues
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_inside = False  # a character, of which the decoder holds the first bytes

    def push(self, token_id: int) -> str:
        """Return the text that this token completes; empty inside a character."""
        skip = self._skip_special and self._tokenizer.is_special(token_id)
        if self._mark and token_id in self._shown:
            return self.flush() + self._mark + self._tokenizer.token_text(token_id)
        if skip and token_id not in self._shown:
            return ""
        if not self._is_inside and (text := self._tokenizer.whole_text(token_id)):
            return self._emit(text) if self._strip_space else text
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._is_inside = bool(self._utf8.getstate()[0])
        return self._emit(text)

    def flush(self) -> str:
        """Return what an unfinished character leaves: the replacement character, or nothing."""
        self._is_inside = False
        return self._emit(self._utf8.decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if text and self._strip_space:
            self._strip_space = False
            return text.removeprefix(" ")
        return text


class StopStrings:
    """The stop strings of a request as one automaton (Aho and Corasick's), for all its answers.

    A state is the longest end of the text that begins some of the strings. A character costs the
    same however many strings there are; building takes time for each of their characters.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.strings = [stop for stop in dict.fromkeys(stops) if stop]
        self.lengths = [0]  # of the text that each state stands for
        self._next: list[dict[str, int]] = [{}]  # the state after another character of a string
        self._shorter = [0]  # the state of the longest end of its text but the whole
        self._longest: list[int] = [0]  # characters of the longest string the text ends with
        for stop in self.strings:
            self._add(stop)
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            found = self._next[state].get(char)
            if found is None:
                found = self._next[state][char] = len(self._next)
                self._next.append({})
                self.lengths.append(self.lengths[state] + 1)
                self._shorter.append(0)
                self._longest.append(0)
            state = found
        self._longest[state] = len(stop)

    def _link(self) -> None:
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for char, longer in self._next[state].items():
                self._shorter[longer] = self._step(self._shorter[state], char)
                self._longest[longer] = (
                    self._longest[longer] or self._longest[self._shorter[longer]]
                )
                waiting.append(longer)

    def _step(self, state: int, char: str) -> int:
        while (found := self._next[state].get(char)) is None:
            if not state:
                return 0
            state = self._shorter[state]
        return found

    def advance(self, state: int, char: str) -> tuple[int, int]:
        """The state after a character, and the length of the longest string that ends with it."""
        state = self._step(state, char)
        length = self._longest[state]
        # What can grow into no string any more is not waited for.
        while state and not self._next[state]:
            state = self._shorter[state]
        return state, length


class StopMatcher:
    """Finds stop strings in streamed text and holds back what could become one.

    The match that starts first wins, the shortest of those that start together, however the text
    was cut into pieces.
    """

    def __init__(self, stops: StopStrings, include_stop: bool = False) -> None:
        self._stops = stops
        self._state = 0
        self._include_stop = include_stop
        self._held = ""
        self._found: tuple[int, int] | None = None  # where in _held, of what length
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, bool]:
        """Take more text; return what can be shown, and whether a stop string was found.

        After a match the rest is dropped.
        """
        if self.matched is not None:
            return "", True
        stops = self._stops
        if not stops.strings:
            return text, False
        position = unfinished = len(self._held)
        self._held += text
        for char in text:
            position += 1
            self._state, length = stops.advance(self._state, char)
            if length:
                # Of those that end here the longest starts first, and no two start together.
                found = (position - length, length)
                self._found = found if self._found is None else min(found, self._found)
            unfinished = position - stops.lengths[self._state]
            if self._found is not None and self._found[0] <= unfinished:
                return self._finish(), True
        if not text:
            return "", False
        shown = unfinished if self._found is None else min(unfinished, self._found[0])
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
        start, length = self._found
        self.matched = self._held[start : start + length]
        text = self._held[: start + length if self._include_stop else start]
        self._held = ""
        return text
