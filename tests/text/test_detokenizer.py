"""Streams of tokens: whole characters, stop strings, and constant time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import byte_level_metadata, gguf_files, sentencepiece_metadata

from growth import grows_no_faster
from lanewise.text.detokenizer import StopMatcher, StopStrings, StreamDecoder
from lanewise.text.tokenizer import Tokenizer

TOKENIZERS = {
    "byte-level": Tokenizer.from_files(gguf_files(byte_level_metadata())),
    "sentencepiece": Tokenizer.from_files(gguf_files(sentencepiece_metadata())),
    "no space prefix": Tokenizer.from_files(
        gguf_files(sentencepiece_metadata(add_space_prefix=False))
    ),
}


def stream(tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[str]:
    decoder = StreamDecoder(tokenizer, **options)
    return [*(decoder.push(i) for i in ids), decoder.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), skip_special=st.booleans())
def test_pieces_joined_are_the_whole(name: str, data: st.DataObject, skip_special: bool) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    pieces = stream(tokenizer, ids, skip_special=skip_special)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40))
def test_text_comes_back_in_whole_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    pieces = stream(tokenizer, tokenizer.encode(text, add_bos=False, parse_special=False))
    wanted = text.encode("utf-8", "replace").decode()
    if name != "byte-level":
        wanted = wanted.replace("▁", " ")  # SentencePiece's own sign for one
    assert "".join(pieces) == wanted
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_character_of_four_tokens_comes_with_its_last() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("🦙", add_bos=False, parse_special=False)
    assert len(ids) == 4
    assert stream(tokenizer, ids) == ["", "", "", "🦙", ""]
    assert stream(tokenizer, ids[:3]) == ["", "", "", "\N{REPLACEMENT CHARACTER}"]


def test_leading_space_belongs_to_the_text_before() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("hello world", add_bos=True, parse_special=False)
    assert stream(tokenizer, ids) == ["", "hello", " world", ""]
    assert stream(tokenizer, ids[2:]) == ["world", ""]
    assert stream(tokenizer, ids[2:], continues=True) == [" world", ""]
    assert stream(tokenizer, ids, skip_special=False) == ["<s>", " hello", " world", ""]


def test_decoding_takes_constant_time_for_each_token() -> None:
    tokenizer = TOKENIZERS["byte-level"]

    def push(count: int) -> None:
        decoder = StreamDecoder(tokenizer)
        for _ in range(count):
            decoder.push(200)  # never ends a character

    assert grows_no_faster(lambda: push(20_000), lambda: push(200_000), 40)  # fair is 10


ALPHABET = st.text("abc", max_size=30)
STOPS = st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    found = [(text.find(stop), len(stop)) for stop in stops if stop in text]
    if not found:
        return text, False
    start, length = min(found)
    return text[: start + length * include], True


@settings(max_examples=500)
@given(text=ALPHABET, stops=STOPS, cuts=st.lists(st.integers(0, 30)), include=st.booleans())
def test_earliest_stop_wins_however_the_text_is_cut(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    matcher = StopMatcher(StopStrings(stops), include_stop=include)
    shown = ""
    for start, end in itertools.pairwise(edges):
        piece, _ = matcher.push(text[start:end])
        shown += piece
        assert expected(text, stops, include)[0].startswith(shown)  # nothing must be taken back
    shown += matcher.flush()
    assert (shown, matcher.matched is not None) == expected(text, stops, include)


@given(text=ALPHABET, stops=STOPS)
def test_only_what_could_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown = ""
    for end, char in enumerate(text, 1):
        piece, done = matcher.push(char)
        shown += piece
        if done:
            break
        held = text[len(shown) : end]
        assert not held or any(stop.startswith(held) for stop in stops) or len(held) > 1
        assert len(held) < max(map(len, stops)) * 2


def test_match_is_reported_and_ends_the_text() -> None:
    matcher = StopMatcher(StopStrings(["\n\n", "END"]))
    assert matcher.push("one E") == ("one ", False)
    assert matcher.push("N") == ("", False)
    assert matcher.push("D two") == ("", True)
    assert matcher.matched == "END"
    assert matcher.push("three") == ("", True)
    assert matcher.flush() == ""


def test_stop_inside_a_piece_keeps_what_precedes_it() -> None:
    assert StopMatcher(StopStrings(["."])).push("One. Two.") == ("One", True)
    assert StopMatcher(StopStrings(["."]), include_stop=True).push("One. Two.") == ("One.", True)


def test_false_start_is_released() -> None:
    matcher = StopMatcher(StopStrings(["abcd"]))
    assert matcher.push("xabc") == ("x", False)
    assert matcher.push("x") == ("abcx", False)
    assert matcher.push("ab") == ("", False)
    assert matcher.flush() == "ab"
    assert matcher.matched is None


def test_earlier_unfinished_stop_is_waited_for() -> None:
    matcher = StopMatcher(StopStrings(["abc", "b"]))
    assert matcher.push("ab") == ("", False)
    assert matcher.push("x") == ("a", True)
    assert matcher.matched == "b"
    matcher = StopMatcher(StopStrings(["abc", "b"]))
    assert matcher.push("ab") == ("", False)
    assert matcher.flush() == "a"
    assert matcher.matched == "b"


def test_without_stops_text_passes_through() -> None:
    matcher = StopMatcher(StopStrings(["", ""]))
    assert matcher.push("text") == ("text", False)
    assert matcher.flush() == ""


def test_a_character_costs_the_same_with_many_stops() -> None:
    def pushing(count: int) -> Callable[[], None]:
        stops = StopStrings([f"{i:06}" for i in range(count)])

        def push() -> None:
            matcher = StopMatcher(stops)
            for i in range(20_000):
                matcher.push(str(i % 10) + " ")

        return push

    assert grows_no_faster(pushing(2), pushing(20_000), 40)


def test_long_stop_costs_no_more_than_its_length() -> None:
    stop = "a" * 200_000 + "b"
    matcher = StopMatcher(StopStrings([stop]))
    start = time.process_time()
    for _ in range(2_000):
        matcher.push("a" * 100)
    assert time.process_time() - start < 5
