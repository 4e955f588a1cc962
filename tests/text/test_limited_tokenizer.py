"""Tokenizers that take more than in proportion to a text run where they can be ended."""

import base64
import json
import logging
import os
import resource
import signal
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import normalizers

from data_files import data
from encoder_tokenizers import unigram, word_piece
from hostile_tokenizers import (
    DOUBLED,
    HOSTILE,
    LARGE_TO_LOAD,
    cut_at,
    ordinary,
    replaced,
    sequence,
    written,
)
from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.text.limited_tokenizer import LimitedTokenizer
from lanewise.text.pre_tokenizers import LINEAR, PRE_TOKENIZERS, THREES
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.tokenizer_doubts import charsmap_doubt, doubt
from lanewise.text.tokenizing_error import TokenizingError, panics_told
from lanewise.text.whole_texts import WholeTexts


def tokenizer(changes: dict) -> Tokenizer:
    text = {"tokenizer.json": written(changes)}
    return Tokenizer.from_files(TokenizerFiles(Path("m"), 400, None, {}, text))


def encoded(made: Tokenizer, text: str) -> list[int]:
    return made.encode(text, add_bos=False, parse_special=False)


def children_memory() -> int:
    """Bytes that the largest child of this process has had."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10


@pytest.mark.parametrize("name", HOSTILE)
def test_what_takes_too_much_is_ended_and_the_next_text_is_read(name, caplog):
    changes, text = HOSTILE[name]
    # Other tests had children too, and a child begins with what this process has.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    most = max(256 << 20, children_memory(), own)
    made = tokenizer(changes)
    with caplog.at_level(logging.WARNING), pytest.raises(TokenizingError) as caught:
        encoded(made, text)
    assert "the model's tokenizer cannot be used" in str(caught.value)
    assert len(str(caught.value)) < 500
    for record in caplog.records:
        assert "\n" not in record.getMessage()
        assert not record.exc_info
    # What is short enough is cut as ever, in a new process.
    encoded(made, "")
    assert children_memory() <= most


@pytest.mark.parametrize("changes", [LARGE_TO_LOAD], ids=["an added token"])
def test_what_takes_too_much_while_it_is_made_is_no_tokenizer(changes):
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: not a usable tokenizer"):
        tokenizer(changes)


def test_what_is_put_around_a_text_is_limited_too():
    with pytest.raises(ModelFileError):
        WholeTexts(tokenizer(DOUBLED))


def test_a_panic_of_the_library_is_an_error_that_says_so():
    library = Library.from_str(written({"pre_tokenizer": cut_at("(a+)+b|x")}))
    with pytest.raises(TokenizingError, match="retry-limit"), panics_told():
        library.encode("a" * 28 + "c")
    with pytest.raises(KeyboardInterrupt), panics_told():
        raise KeyboardInterrupt


def test_a_process_gives_what_the_library_gives():
    text = json.dumps(json.loads(word_piece().to_str()))
    limited, library = LimitedTokenizer.of(text, "m"), Library.from_str(text)
    texts = ["the river", "", "[SEP] naïve 東京", "a " * 70_000]
    found = limited.encode_batch_fast(texts, add_special_tokens=False)
    wanted = library.encode_batch_fast(texts, add_special_tokens=False)
    assert [one.ids.tolist() for one in found] == [one.ids for one in wanted]
    assert list(map(len, found)) == list(map(len, wanted))
    one, other = limited.encode("the", "river"), library.encode("the", "river")
    assert one.ids.tolist() == other.ids
    assert (one.type_ids, one.sequence_ids) == (other.type_ids, other.sequence_ids)
    assert limited.decode(other.ids) == library.decode(other.ids)
    assert limited.token_to_id("the") == library.token_to_id("the")


def test_a_process_that_is_killed_is_started_again():
    made = tokenizer({"pre_tokenizer": cut_at("a|b")})
    assert made.is_limited
    assert encoded(made, "ab") == [2, 3]
    os.kill(made.whole._short._running[0].pid, signal.SIGKILL)
    with pytest.raises(TokenizingError):
        encoded(made, "ab")
    assert encoded(made, "ab") == [2, 3]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", replaced({"Regex": "x"}, "y")),
        ("normalizer", replaced({"String": ""}, "y")),
        ("normalizer", replaced({"String": "a"}, "a" * 100)),
        ("normalizer", sequence("normalizers", [sequence("normalizers", [{"type": "NFKD"}] * 2)])),
        ("normalizer", sequence("normalizers", [{"type": "NFC"}] * 2 + [{"type": "NFKC"}])),
        ("normalizer", replaced({"Regex": {}}, "y")),
        ("normalizer", {"type": "Unheard"}),
        ("normalizer", {"type": {}}),
        ("pre_tokenizer", {"type": []}),
        ("decoder", [{}]),
        ("normalizer", "NFC"),
        ("pre_tokenizer", cut_at(THREES)),
        ("pre_tokenizer", sequence("pretokenizers", [{"type": "Digits"}] * 40)),
        ("decoder", replaced({"Regex": "(a|a)*b"}, "")),
        ("post_processor", DOUBLED["post_processor"]),
        ("model", ordinary()["model"] | {"type": None}),
        ("model", {"type": "WordPiece", "max_input_chars_per_word": 10**9}),
        ("model", {"type": "Unigram", "vocab": [["a" * 300, 0.0]]}),
    ],
)
def test_what_is_not_known_to_be_cheap_is_doubted(part, value):
    assert part in (doubt(ordinary() | {part: value}) or "")


@pytest.mark.parametrize(
    "parsed",
    [ordinary(), json.loads(word_piece().to_str()), json.loads(unigram().to_str())],
    ids=["pieces", "word pieces", "unigram"],
)
def test_ordinary_tokenizers_stay_in_this_process(parsed):
    assert doubt(parsed) is None


def test_published_tokenizers_stay_in_this_process():
    minimind = data("tokenizers/minimind/tokenizer.json")
    assert doubt(json.loads(minimind.read_text())) is None
    for name, pre in PRE_TOKENIZERS.items():
        steps = [cut_at(pattern) for pattern in pre.patterns]
        found = doubt(ordinary() | {"pre_tokenizer": sequence("pretokenizers", steps)})
        assert (found is None) == LINEAR.issuperset(pre.patterns), name


def test_how_much_a_map_of_characters_makes_of_one_is_found():
    index = bytes(8)
    short = len(index).to_bytes(4, "little") + index + b"\0ab\0" + b"c" * 33
    long = short + b"c" * 1000
    assert charsmap_doubt(short) is None
    assert "1033 bytes" in (charsmap_doubt(long) or "")
    for charsmap, is_doubted in ((short, False), (long, True)):
        packed = base64.b64encode(charsmap).decode()
        step = {"type": "Precompiled", "precompiled_charsmap": packed}
        assert (doubt(ordinary() | {"normalizer": step}) is not None) == is_doubted


RUNS = " " * 20_000 + "x" + "1" * 20_000 + "x" + "aA" * 10_000 + "!" * 20_000 + "\n" * 20_000 + "x"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(LINEAR))
def test_listed_expressions_take_time_in_proportion(pattern):
    made = LimitedTokenizer.of(written({"pre_tokenizer": cut_at(pattern)}), "m")
    assert made.encode_batch_fast([RUNS], add_special_tokens=False)


@pytest.mark.parametrize("pattern", [THREES, r"\s+$"])
def test_others_do_not(pattern):
    made = LimitedTokenizer.of(written({"pre_tokenizer": cut_at(pattern)}), "m")
    with pytest.raises(TokenizingError, match="processor time"):
        made.encode_batch_fast([RUNS], add_special_tokens=False)


def test_the_largest_growth_of_unicode_is_known():
    longest = "\ufdfa"
    assert len(normalizers.NFKD().normalize_str(longest)) == 18
