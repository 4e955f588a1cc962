"""Whole texts and pairs as the token ids that a model which is pooled reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from lanewise.text.surrogates import without_surrogates
from lanewise.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

Side = Literal["right", "left"]
Text = str | tuple[str, str]
# Of a text that is longer, only its beginning is cut into tokens first: that may be too long too.
LONG_TEXT = 1 << 16  # characters
CHARACTERS_OF_TOKEN = 64
FEW_CHARACTERS = 8  # of a token: shorter texts are not worth a look
AT_ONCE = 256  # texts: their tokens as the library has them take much memory


class WholeText(NamedTuple):
    """The token ids of a text with the special tokens around it, and their types."""

    ids: Sequence[int]
    types: Sequence[int]


class Part(NamedTuple):
    """A text of a pair as it is cut into tokens."""

    text: str
    is_all: bool
    n_tokens: int = 0  # of all of it, where that is known


class TooLongError(Exception):
    """A text has more tokens than its model takes."""

    def __init__(self, index: int, n_tokens: int, is_exact: bool) -> None:
        super().__init__(f"text {index} has {n_tokens} tokens")
        self.index = index
        self.n_tokens = n_tokens
        self.is_exact = is_exact  # or there are more


class WholeTexts:
    """Cuts whole texts into tokens; several threads may."""

    def __init__(
        self, tokenizer: Tokenizer, prepare: Callable[[str], str] = lambda text: text
    ) -> None:
        self._tokenizer = tokenizer.whole
        self._prepare = prepare  # what is done to a text before
        self.n_special = self._tokenizer.num_special_tokens_to_add(False)
        self.n_special_of_pair = self._tokenizer.num_special_tokens_to_add(True)

    def encode(self, texts: Sequence[Text], limit: int, cut: Side | None = None) -> list[WholeText]:
        """Return the tokens of texts; of a tuple those of a pair.

        What has more than ``limit`` tokens loses those of its end, or of its beginning with "left";
        of pairs the longer text loses first. Without ``cut`` TooLongError is raised of the first.
        """
        whole: list[WholeText] = []
        known: dict[str, Part] = {}
        for first in range(0, len(texts), AT_ONCE):
            clean = [
                self._clean(text, limit, cut, known) for text in texts[first : first + AT_ONCE]
            ]
            found = self._tokenizer.encode_batch_fast([text for text, _ in clean])
            for (text, is_all), encoding in zip(clean, found, strict=True):
                n_tokens = len(encoding)
                if n_tokens > limit and cut is None:
                    raise TooLongError(len(whole), n_tokens, is_all)
                if n_tokens > limit:
                    parts = texts[len(whole)]
                    pair = parts if isinstance(parts, tuple) else ()
                    sizes = [known[part].n_tokens for part in pair]
                    encoding = self._cut(text, sizes, limit, cut or "right")
                whole.append(WholeText(encoding.ids, encoding.type_ids))
        return whole

    def _clean(
        self, text: Text, limit: int, cut: Side | None, known: dict[str, Part]
    ) -> tuple[Text, bool]:
        """A text as it is cut into tokens, and whether that is all of it."""
        if isinstance(text, str):
            return self._one(text, limit, cut)
        for part in text:
            if part not in known:
                known[part] = self._short(*self._one(part, limit, cut), limit, cut)
        first, second = (known[part] for part in text)
        return (first.text, second.text), first.is_all and second.is_all

    def _short(self, text: str, is_all: bool, limit: int, cut: Side | None) -> Part:
        """A part of pairs, which may be one of thousands: no more of it than a pair can have."""
        if len(text) <= limit * FEW_CHARACTERS or cut == "left":
            return Part(text, is_all)
        (found,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        if len(found) <= limit + 1:
            return Part(text, is_all)
        end = text.find(" ", found.offsets[limit][1])
        return Part(text[:end], False, len(found)) if end > 0 else Part(text, is_all)

    def _one(self, text: str, limit: int, cut: Side | None) -> tuple[str, bool]:
        text = self._prepare(without_surrogates(text))
        if len(text) <= LONG_TEXT or cut == "left":
            return text, True
        # At a space, before which tokens end: they are the first of the whole text.
        end = text.rfind(" ", 0, max(LONG_TEXT, limit * CHARACTERS_OF_TOKEN))
        if end <= 0:
            return text, True
        (begin,) = self._tokenizer.encode_batch_fast([text[:end]], add_special_tokens=False)
        return (text[:end], False) if len(begin) > limit else (text, True)

    def _cut(self, text: Text, sizes: Sequence[int], limit: int, side: Side) -> Encoding:
        """``sizes`` are at least so many tokens of the texts of a pair."""
        encode, post = self._tokenizer.encode_batch_fast, self._tokenizer.post_process
        if isinstance(text, str):
            (one,) = encode([text], add_special_tokens=False)
            one.truncate(max(0, limit - self.n_special), direction=side)
            return post(one)
        first, second = encode(list(text), add_special_tokens=False)
        lengths = (max(len(first), sizes[0]), max(len(second), sizes[1]))
        left = longest_first(*lengths, max(0, limit - self.n_special_of_pair))
        for one, size in zip((first, second), left, strict=True):
            one.truncate(size, direction=side)
        return post(first, second)


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
