"""Long texts in pieces: the tokens are those of the whole, and no more are made than are wanted."""

from contextlib import contextmanager
from random import Random

import pytest
from tiny_tokenizers import byte_level_metadata, gguf_files, sentencepiece_metadata
from tokenizers import AddedToken

from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.text import pieces
from lanewise.text.pieces import AT_ONCE, TOKEN_BYTES, Bounds, Cutter
from lanewise.text.tokenizer import Tokenizer
from toy_tokenizer import toy_tokenizer

WORDS = [
    "the",
    "sea",
    "λόγος",
    "слово",
    "你好日本",
    "étude",
    "don't",
    "3.14",
    "x=y;",
    "<b>",
    "</s>",
    "😀",
    "naïve",
    "tab",
]
BETWEEN = [" ", " ", " ", "  ", "\n", " \n", "\n\n", "\t", "   ", ""]


def bundled() -> Tokenizer:
    with open_checkpoint(resolve_model(None)) as checkpoint:
        return Tokenizer.from_files(checkpoint.tokenizer)


TOKENIZERS = {
    "toy": toy_tokenizer,
    "bundled": bundled,
    "byte level": lambda: Tokenizer.from_files(gguf_files(byte_level_metadata())),
    "SentencePiece": lambda: Tokenizer.from_files(gguf_files(sentencepiece_metadata())),
}


class Counting:
    """Room for so many bytes."""

    def __init__(self, most: float = float("inf")) -> None:
        self.most, self.used, self.passed = most, 0, []

    def keep(self, n_bytes: int) -> None:
        self.used += n_bytes
        if self.used > self.most:
            raise MemoryError

    @contextmanager
    def passing(self, n_bytes: int):
        self.passed.append(n_bytes)
        if self.used + n_bytes > self.most:
            raise MemoryError
        yield


@pytest.mark.parametrize("name", TOKENIZERS)
def test_pieces_have_the_tokens_of_the_whole(name, monkeypatch):
    tokenizer, rng = TOKENIZERS[name](), Random(1)
    for parse in (True, False):
        for _ in range(20):
            text = "".join(rng.choice(WORDS) + rng.choice(BETWEEN) for _ in range(200))
            whole = tokenizer.encode(text, add_bos=True, parse_special=parse)
            inside = tokenizer.encode_behind(text)
            with monkeypatch.context() as small:
                small.setattr(pieces, "AT_ONCE", 150)
                small.setattr(pieces, "STRIDE", 32)
                cut = list(tokenizer.pieces(text, parse_special=parse))
                assert tokenizer.encode(text, add_bos=True, parse_special=parse) == whole
                assert tokenizer.encode_behind(text) == inside
            assert "".join(piece.text for piece in cut) == text
            assert len(cut) > 3
            assert max(len(piece.text) for piece in cut) < 400


def test_a_text_is_not_cut_where_tokens_lie_on_both_sides(monkeypatch):
    def none(_: str) -> list[int]:
        return []

    monkeypatch.setattr(pieces, "AT_ONCE", 8)
    text = "some words of a text"
    assert len(list(Cutter((), lambda: [b" of", b"a"]).pieces(text, none))) > 1
    assert len(list(Cutter((), lambda: [b"of the"]).pieces(text, none))) == 1
    stripping = AddedToken("word", rstrip=True)
    assert len(list(Cutter((stripping,), lambda: [b"a"]).pieces(text, none))) == 1


def test_no_more_is_made_than_is_wanted():
    tokenizer, room = toy_tokenizer(), Counting()
    text = "the inner end " * 40_000
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    some = tokenizer.encode(
        text, add_bos=False, parse_special=True, bounds=Bounds(most=100, room=room)
    )
    assert 100 < len(some) < len(ids) / 3
    assert some == ids[: len(some)]
    assert room.used == TOKEN_BYTES * len(some)
    last = Counting()
    bounds = Bounds(last=100, room=last)
    assert tokenizer.encode(text, add_bos=False, parse_special=True, bounds=bounds) == ids[-100:]
    assert last.used == TOKEN_BYTES * 100


def test_a_text_that_cannot_be_cut_needs_room_for_all_of_it():
    tokenizer, word = toy_tokenizer(), "a" * (2 * AT_ONCE)
    for text, parse in ((word, True), (word, False)):
        with pytest.raises(MemoryError):
            tokenizer.encode(
                text,
                add_bos=False,
                parse_special=parse,
                bounds=Bounds(room=Counting(AT_ONCE)),
            )
    with pytest.raises(MemoryError):
        tokenizer.encode_behind(word, Bounds(room=Counting(AT_ONCE)))
    with pytest.raises(MemoryError):
        tokenizer.encode_marked(word + "\ufdd0", "\ufdd0", Bounds(room=Counting(AT_ONCE)))
