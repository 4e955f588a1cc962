"""Whole texts and pairs as the token ids that a model which is pooled reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.text.backend import Library, build
from lanewise.text.surrogates import without_surrogates
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.tokenizing_error import panics_told

Ids = NDArray[np.uint32]
Side = Literal["right", "left"]
Text = str | tuple[str, str]
# Of a text that is longer, only its beginning is cut into tokens first: that may be too long too.
LONG_TEXT = 1 << 16  # characters
CHARACTERS_OF_TOKEN = 8
# What is behind so many characters is never looked at, however few tokens they have: one word of
# eight million letters may be one token.
MAX_CHARACTERS, MAX_OF_TOKEN = 1 << 19, 32
GROWTH = 4
# Where words are cut, their tokens change: these are of no use.
TORN_TOKENS = 64
# Tokens as the library has them take 300 bytes each, and a text may have one for each character.
AT_ONCE = 256  # texts
CHARACTERS_AT_ONCE = 1 << 18


class WholeText(NamedTuple):
    """The token ids of a text with the special tokens around it, and their types."""

    ids: Ids
    types: Ids


class Part(NamedTuple):
    """A text without special tokens."""

    ids: Ids  # no more than a model takes, of the side that is kept
    n_tokens: int
    is_all: bool  # or there are more


class TooLongError(Exception):
    """A text has more tokens than its model takes."""

    def __init__(
        self, index: int, n_tokens: int, is_exact: bool, n_characters: int | None = None
    ) -> None:
        super().__init__(f"text {index} has {n_tokens} tokens")
        self.index = index
        self.n_tokens = n_tokens
        self.is_exact = is_exact  # or there are more
        self.n_characters = n_characters  # where these alone are too many


class Around:
    """The tokens before, between and after texts, and the types of all tokens."""

    def __init__(
        self, around: Iterable[Sequence[int]], types: Iterable[Sequence[int]], of: Sequence[int]
    ) -> None:
        """``of`` has the type of each text's tokens."""
        self._ids = [np.array(some, np.uint32) for some in around]
        self._types = [np.array(some, np.uint32) for some in types]
        self._type_of = of
        self.n_tokens = sum(map(len, self._ids))

    @classmethod
    def of_library(cls, library: Library, n_texts: int, vocab_size: int) -> Around:
        """For so many texts; ModelFileError where the library makes something else of them."""
        text = _sample(library)
        sample = build("tokenizer", lambda: library.encode(text, text if n_texts > 1 else None))
        around: list[list[int]] = [[]]
        types: list[list[int]] = [[]]
        type_of: list[int] = []
        texts: list[int] = []
        for id_, type_, of in zip(sample.ids, sample.type_ids, sample.sequence_ids, strict=True):
            if of is None:
                around[-1].append(id_)
                types[-1].append(type_)
            elif texts[-1:] != [of]:
                around.append([])
                types.append([])
                type_of.append(type_)
                texts.append(of)
        if texts != list(range(n_texts)):
            raise ModelFileError(
                f"tokenizer: its post-processor makes texts {texts} of {n_texts}; accepted: each"
                " text once, in order"
            )
        if (most := max(chain.from_iterable(around), default=0)) >= vocab_size:
            raise ModelFileError(
                f"tokenizer: its post-processor adds token {most}; accepted: 0 to {vocab_size - 1}"
            )
        return cls(around, types, type_of)

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """What is before the first and behind the last."""
        return self._ids[0].tolist(), self._ids[-1].tolist()

    def put(self, texts: Iterable[Ids]) -> WholeText:
        """The texts with what is around them."""
        ids, types = [self._ids[0]], [self._types[0]]
        for text, type_, after, its_types in zip(
            texts, self._type_of, self._ids[1:], self._types[1:], strict=True
        ):
            ids += (text, after)
            types += (np.full(len(text), type_, np.uint32), its_types)
        return WholeText(np.concatenate(ids), np.concatenate(types))


class WholeTexts:
    """Cuts whole texts into tokens; several threads may."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prepare: Callable[[str], str] = lambda text: text,
        pair: Sequence[str] | None = None,
    ) -> None:
        """``prepare`` is done to a text before.

        With ``pair`` these are before, between and after the texts of a pair; names of control
        tokens are tokens in them, and text in what is between.
        """
        self._tokenizer = tokenizer.whole if pair is None else tokenizer.plain
        self._prepare = prepare
        self._around = Around.of_library(tokenizer.whole, 1, tokenizer.vocab_size)
        if pair is None:
            self._around_pair = Around.of_library(self._tokenizer, 2, tokenizer.vocab_size)
        else:
            ids = [tokenizer.encode(one, add_bos=False, parse_special=True) for one in pair]
            self._around_pair = Around(ids, [[0] * len(one) for one in ids], [0, 0])
        self.n_special, self.n_special_of_pair = self._around.n_tokens, self._around_pair.n_tokens

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        """The tokens before and behind a text."""
        return self._around.ends

    def prepared(self, text: str) -> str:
        """A text as it is cut into tokens."""
        return self._prepare(text)

    def encode(
        self,
        texts: Sequence[Text],
        limit: int,
        cut: Side | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> list[WholeText]:
        """Return the tokens of texts; of a tuple those of a pair.

        What has more than ``limit`` tokens loses those of its end, or of its beginning with "left";
        of pairs the longer text loses first. Without ``cut`` TooLongError is raised of the first.
        ``check`` is called now and then, and may raise to end the work.
        """
        whole: list[WholeText] = []
        known: dict[str, Part] = {}
        if cut is None:
            _check_characters(texts, limit)
        for group in _groups(texts, _most(limit)):
            check()
            self._cut_into_tokens(group, limit, cut, known)
            for text in group:
                parts = [known[part] for part in _parts(text)]
                whole.append(self._put_together(len(whole), parts, limit, cut))
            known = {part: known[part] for part in _parts(group[-1])}  # the query is of all
        return whole

    def _cut_into_tokens(
        self, group: Iterable[Text], limit: int, cut: Side | None, known: dict[str, Part]
    ) -> None:
        size = _most(limit)
        new = dict.fromkeys(part for text in group for part in _parts(text) if part not in known)
        clean = [self._prepare(without_surrogates(_kept(part, limit, cut))) for part in new]
        begun = [_piece(text, size, cut) for text in clean]
        found = self._encode([piece for piece, _ in begun])
        # The library's tokens are large: those of a text are let go as soon as it is known.
        for name, text in zip(reversed(new), reversed(clean), strict=True):
            (piece, torn), one, grown = begun.pop(), found.pop(), size
            while len(piece) < len(text) and len(one) <= limit + torn:
                grown = self._longer(text, grown, cut, limit)
                piece, torn = _piece(text, grown, cut)
                (one,) = self._encode([piece])
            ids = np.array(one.ids, np.uint32)
            ids = ids[-limit:] if cut == "left" else ids[:limit]
            known[name] = Part(ids.copy(), len(one), len(piece) == len(text))

    def _encode(self, texts: Sequence[str]) -> list[Any]:
        with panics_told():
            return list(self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False))

    def _longer(self, text: str, size: int, cut: Side | None, limit: int) -> int:
        """How many characters of a text to try when so many have too few tokens.

        What is added is counted by itself first, and no more of it than is needed is taken: behind
        one long word, or many spaces, a text may have a token for each character.
        """
        most, found = size * GROWTH, 0
        while size < min(most, len(text)) and found <= limit + 2 * TORN_TOKENS:
            end = len(text) - size
            more = (
                text[max(0, end - LONG_TEXT) : end]
                if cut == "left"
                else text[size : size + LONG_TEXT]
            )
            (added,) = self._encode([more])
            found += len(added)
            size += LONG_TEXT
        return size

    def _put_together(
        self, index: int, parts: Sequence[Part], limit: int, cut: Side | None
    ) -> WholeText:
        around, n_special = self._around, self.n_special
        if len(parts) > 1:
            around, n_special = self._around_pair, self.n_special_of_pair
        n_tokens = sum(part.n_tokens for part in parts) + n_special
        if n_tokens <= limit:
            return around.put(part.ids for part in parts)
        if cut is None:
            raise TooLongError(index, n_tokens, all(part.is_all for part in parts))
        room = max(0, limit - n_special)
        left: tuple[int, ...] = (room,)
        if len(parts) > 1:
            left = longest_first(parts[0].n_tokens, parts[1].n_tokens, room)
        return around.put(
            part.ids[max(0, len(part.ids) - size) :] if cut == "left" else part.ids[:size]
            for part, size in zip(parts, left, strict=True)
        )


def _sample(library: Library) -> str:
    """A text that has tokens."""
    tried = chain(("a", "the", "1"), (library.decode([id_]) for id_ in range(256)))
    return next(
        (text for text in tried if len(library.encode(text, add_special_tokens=False).ids)), ""
    )


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _most(limit: int) -> int:
    """Characters of a text that are cut into tokens first."""
    return max(LONG_TEXT, limit * CHARACTERS_OF_TOKEN)


def most_characters(limit: int) -> int:
    """Characters of a text of so many tokens that are looked at."""
    return max(MAX_CHARACTERS, limit * MAX_OF_TOKEN)


def _kept(text: str, limit: int, cut: Side | None) -> str:
    most = most_characters(limit)
    return text[-most:] if cut == "left" else text[:most]


def _check_characters(texts: Sequence[Text], limit: int) -> None:
    """Raise TooLongError of the first text that has too many characters."""
    most = most_characters(limit)
    for index, text in enumerate(texts):
        longest = max(map(len, _parts(text)))
        if longest > most:
            raise TooLongError(index, limit + 1, is_exact=False, n_characters=longest)


def _groups(texts: Sequence[Text], most: int) -> Iterator[Sequence[Text]]:
    """Texts whose tokens the library makes at once."""
    first = size = 0
    seen: set[str] = set()
    for index, text in enumerate(texts):
        new = [part for part in _parts(text) if part not in seen]
        more = sum(min(len(part), most) for part in new)
        if index > first and (index - first >= AT_ONCE or size + more > CHARACTERS_AT_ONCE):
            yield texts[first:index]
            first, size = index, 0
            seen.clear()
        size += more
        seen.update(new)
    if first < len(texts):
        yield texts[first:]


def _piece(text: str, size: int, cut: Side | None) -> tuple[str, int]:
    """The side of a text that is kept, and how many of its tokens may be others in the text."""
    if len(text) <= size:
        return text, 0
    if cut == "left":
        return text[-size:], TORN_TOKENS
    # Before a space tokens end: they are the first of the whole text. A space that is far behind
    # would make less of the text than was asked for, again and again.
    end = text.rfind(" ", max(size // 2, size - LONG_TEXT), size)
    return (text[:end], 0) if end > 0 else (text[:size], TORN_TOKENS)


def longest_first(first: int, second: int, limit: int) -> tuple[int, int]:
    """How many tokens are left of each text of a pair, as the tokenizers library cuts them."""
    if first + second <= limit:
        return first, second
    short = min(first, second)
    long = short if short > limit else max(short, limit - short)
    if short + long > limit:
        short = limit // 2
        long = short + limit % 2
    return (short, long) if first <= second else (long, short)
