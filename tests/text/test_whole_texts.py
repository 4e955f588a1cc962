"""Whole texts and pairs, WordPiece and Unigram: as the tokenizers library has them."""

from types import SimpleNamespace

import pytest
from tiny_tokenizers import gguf_files, hf_files, sentencepiece_metadata
from tokenizers import Tokenizer as Library

from encoder_tokenizers import (
    converted,
    deberta_pieces,
    eurobert_bytes,
    mpnet_words,
    random_texts,
    unigram,
    word_piece,
)
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.whole_texts import (
    CHARACTERS_AT_ONCE,
    LONG_TEXT,
    TooLongError,
    WholeTexts,
    longest_first,
    most_characters,
)

KINDS = {"word piece": word_piece(), "cased": word_piece(lower=False), "unigram": unigram()}
EACH = pytest.mark.parametrize("library", KINDS.values(), ids=KINDS)
N_TEXTS = 200


def whole(library: Library) -> WholeTexts:
    return WholeTexts(from_json(library))


def from_json(library: Library, **config) -> Tokenizer:
    files = hf_files(library.to_str(), library.get_vocab_size(), tokenizer_config=config)
    return Tokenizer.from_files(files)


def from_gguf(library: Library, **changes) -> WholeTexts:
    metadata = converted(library) | changes
    return WholeTexts(Tokenizer.from_files(gguf_files(metadata)))


def copy_of(library: Library) -> Library:
    return Library.from_str(library.to_str())


def counted(texts: WholeTexts, monkeypatch) -> list[int]:
    """How many characters are given to the library from now on, each time."""
    sizes: list[int] = []
    encode = texts._tokenizer.encode_batch_fast

    def counting(given, **options):
        sizes.append(sum(map(len, given)))
        return encode(given, **options)

    monkeypatch.setattr(texts, "_tokenizer", SimpleNamespace(encode_batch_fast=counting))
    return sizes


@EACH
def test_a_text_and_a_pair_are_what_the_library_makes_of_them(library) -> None:
    texts = random_texts(N_TEXTS, 1)
    pairs = list(zip(texts, reversed(texts), strict=True))
    for mine in (whole(library), from_gguf(library)):
        for given in (texts, pairs):
            wanted = library.encode_batch(given)
            found = mine.encode(given, 1 << 20)
            assert [one.ids.tolist() for one in found] == [one.ids for one in wanted]
            assert [one.types.tolist() for one in found] == [one.type_ids for one in wanted]


@pytest.mark.parametrize("library", [mpnet_words(), deberta_pieces(), eurobert_bytes()])
def test_texts_of_encoders_are_what_their_tokenizers_make_of_them(library) -> None:
    texts = random_texts(N_TEXTS, 2)
    for given in (texts, list(zip(texts, reversed(texts), strict=True))):
        wanted, found = library.encode_batch(given), whole(library).encode(given, 1 << 20)
        assert [one.ids.tolist() for one in found] == [one.ids for one in wanted]
        assert [one.types.tolist() for one in found] == [one.type_ids for one in wanted]
        assert len({id_ for one in wanted for id_ in one.ids}) > 50


@EACH
@pytest.mark.parametrize("side", ["right", "left"])
def test_what_is_too_long_is_cut_as_the_library_cuts(library, side) -> None:
    texts = random_texts(N_TEXTS, 2)
    pairs = list(zip(texts, reversed(texts), strict=True))
    for limit in (4, 5, 11, 24):
        cutting = copy_of(library)
        cutting.enable_truncation(limit, direction=side)
        for given in (texts, pairs):
            wanted = cutting.encode_batch(given)
            found = whole(library).encode(given, limit, side)
            assert [one.ids.tolist() for one in found] == [one.ids for one in wanted]


@EACH
def test_what_is_too_long_is_named(library) -> None:
    with pytest.raises(TooLongError) as caught:
        whole(library).encode(["the", "the river " * 20], 10)
    wanted = len(library.encode("the river " * 20))
    assert (caught.value.index, caught.value.n_tokens, caught.value.is_exact) == (1, wanted, True)


@EACH
def test_of_a_very_long_text_the_beginning_is_enough(library) -> None:
    text = "the river rises " * 20_000
    with pytest.raises(TooLongError) as caught:
        whole(library).encode([text], 10)
    assert not caught.value.is_exact
    (found,) = whole(library).encode([text], 10, "right")
    cutting = copy_of(library)
    cutting.enable_truncation(10)
    assert found.ids.tolist() == cutting.encode(text).ids
    # Much text can be few tokens.
    (found,) = whole(library).encode(["the" + " " * 300_000 + "river"], 300_010)
    assert found.ids.tolist() == library.encode("the" + " " * 300_000 + "river").ids


@pytest.mark.parametrize("char", ["a", " ", "\u4e00", "é"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_what_a_text_costs_is_bounded_by_its_characters(char, side, monkeypatch) -> None:
    texts, limit = whole(KINDS["word piece"]), 64
    most, text = most_characters(limit), char * 3_000_000
    with pytest.raises(TooLongError) as caught:
        texts.encode(["the", text], limit)
    assert (caught.value.index, caught.value.n_characters) == (1, len(text))
    sizes = counted(texts, monkeypatch)
    texts.encode([text], limit, side)
    # Half of it is looked at, then all of it, of which that is made sure of by parts.
    assert sum(sizes) <= 3 * most
    pair = (f"the {text}", "river") if side == "right" else (f"{text} the", "river")
    found = texts.encode([pair], limit, side)
    assert len(found[0].ids) <= limit


@EACH
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("long", ["the river rises " * 4500, "!" * 70_000, "東" * 70_000])
def test_a_long_text_costs_no_more_in_each_of_its_pairs_than_a_pair_has(
    library, side, long, monkeypatch
) -> None:
    documents = random_texts(30, 4)
    cutting = copy_of(library)
    cutting.enable_truncation(24, direction=side)
    pairs = [(long, text) for text in documents] + [(text, long) for text in documents]
    mine = whole(library)
    sizes = counted(mine, monkeypatch)
    found = mine.encode(pairs, 24, side)
    wanted = cutting.encode_batch(pairs[:1] + pairs[-1:])
    assert [found[at].ids.tolist() for at in (0, -1)] == [one.ids for one in wanted]
    assert sum(sizes) < 3 * len(long)


@pytest.mark.parametrize("side", ["right", "left", None])
def test_texts_without_spaces_are_cut_into_tokens_a_little_at_a_time(side, monkeypatch) -> None:
    library = word_piece()
    mine = whole(library)
    sizes = counted(mine, monkeypatch)
    for text in ("!" * 300_000, "東京" * 150_000):
        texts = [text + str(index) for index in range(6)]
        if side is None:
            with pytest.raises(TooLongError) as caught:
                mine.encode(texts, 40)
            assert not caught.value.is_exact
        else:
            cutting = copy_of(library)
            cutting.enable_truncation(40, direction=side)
            (wanted,) = cutting.encode_batch([text[:500] if side == "right" else text[-500:] + "0"])
            assert mine.encode(texts, 40, side)[0].ids.tolist() == wanted.ids
    assert max(sizes) <= CHARACTERS_AT_ONCE


@pytest.mark.parametrize("side", ["right", "left", None])
@pytest.mark.parametrize("few", ["x" + " " * 270_000, "x" * 270_000])
def test_many_tokens_behind_few_are_not_all_made(few, side, monkeypatch) -> None:
    """A token takes 300 bytes, and spaces or one long word may hide a million of them."""
    library = word_piece()
    mine, made = whole(library), []
    encode = mine._tokenizer.encode_batch_fast

    def counting(given, **options):
        found = encode(given, **options)
        made.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(mine, "_tokenizer", SimpleNamespace(encode_batch_fast=counting))
    text = few + "!" * 250_000
    text = text[::-1] if side == "left" else text
    if side is None:
        with pytest.raises(TooLongError) as caught:
            mine.encode([text], 40)
        assert not caught.value.is_exact
    else:
        cutting = copy_of(library)
        cutting.enable_truncation(40, direction=side)
        wanted = cutting.encode(text[:270_200] if side == "right" else text[-270_200:])
        assert mine.encode([text], 40, side)[0].ids.tolist() == wanted.ids
    assert max(made) < 4 * LONG_TEXT
    assert len(made) < 20


def test_work_on_texts_ends_between_them_when_it_is_checked() -> None:
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        whole(word_piece()).encode(["a"] * 10_000, 10, None, check)


def test_the_config_says_how_letters_are_read() -> None:
    library = word_piece()
    cased = from_json(library, do_lower_case=False)
    assert cased.whole.normalizer.lowercase is False
    with pytest.raises(ModelFileError, match="do_lower_case: 'no'; true or false is needed"):
        from_json(library, do_lower_case="no")


def test_words_become_text_again() -> None:
    tokenizer = from_json(word_piece())
    ids = tokenizer.encode("the unbelievable river", add_bos=False, parse_special=False)
    assert tokenizer.decode(ids) == "the unbelievable river"
    (one,) = tokenizer.whole.encode_batch(["the river"])
    assert tokenizer.decode(one.ids) == "the river"


@pytest.mark.parametrize("library", [word_piece(), unigram()], ids=["word piece", "unigram"])
def test_a_file_without_the_ends_of_texts_is_refused(library) -> None:
    metadata = converted(library)
    key = "tokenizer.ggml.cls_token_id"
    del metadata[key]
    Tokenizer.from_files(gguf_files(metadata))  # it is found by its name
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[library.token_to_id("[CLS]") or 0] = "[other]"
    with pytest.raises(ModelFileError, match=f"{key}: missing, and no token is called"):
        Tokenizer.from_files(gguf_files(metadata))


@pytest.mark.parametrize("pair", ["$B $A", "$A $B $A"])
def test_pairs_without_each_text_once_in_order_are_refused(pair) -> None:
    from tokenizers.processors import TemplateProcessing

    library = copy_of(KINDS["word piece"])
    library.post_processor = TemplateProcessing(single="$A", pair=pair, special_tokens=[])
    with pytest.raises(ModelFileError, match="of 2; accepted: each text once, in order"):
        whole(library)


def test_tokens_around_texts_that_the_vocabulary_lacks_are_refused() -> None:
    from tokenizers.processors import TemplateProcessing

    library = copy_of(KINDS["word piece"])
    library.post_processor = TemplateProcessing(
        single="[CLS] $A", pair="$A $B", special_tokens=[("[CLS]", 4096)]
    )
    with pytest.raises(ModelFileError, match="adds token 4096; accepted: 0 to "):
        whole(library)


def test_a_decoder_in_gguf_ends_texts_as_it_says() -> None:
    from tiny_tokenizers import byte_level_metadata

    tokenizer = Tokenizer.from_files(gguf_files(byte_level_metadata(add_eos_token=True)))
    begin, end = tokenizer.bos_id, min(tokenizer.eos_ids)
    (found,) = WholeTexts(tokenizer).encode(["h"], 10)
    assert (found.ids[0], found.ids[-1], len(found.ids)) == (begin, end, 3)


def test_a_decoder_of_sentencepiece_begins_texts_unless_it_says_not_to() -> None:
    metadata = sentencepiece_metadata()
    for changes, begins in (({}, True), ({"tokenizer.ggml.add_bos_token": False}, False)):
        tokenizer = Tokenizer.from_files(gguf_files(metadata | changes))
        (found,) = WholeTexts(tokenizer).encode(["a"], 10)
        assert (found.ids.tolist()[0] == 1) is begins
        assert tokenizer.encode("a", add_bos=True, parse_special=False)[0] == found.ids[0]


def test_longest_first_leaves_what_fits() -> None:
    for first in range(9):
        for second in range(9):
            for limit in range(9):
                left = longest_first(first, second, limit)
                assert sum(left) == min(first + second, limit)
                assert left[0] <= first
                assert left[1] <= second
