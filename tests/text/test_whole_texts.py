"""Whole texts and pairs, WordPiece and Unigram: as the tokenizers library has them."""

import pytest
from tiny_tokenizers import gguf_files, hf_files
from tokenizers import Tokenizer as Library

from encoder_tokenizers import converted, random_texts, unigram, word_piece
from lanewise.loading.checkpoint import ModelFileError
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.whole_texts import TooLongError, WholeTexts, longest_first

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


@EACH
def test_a_text_and_a_pair_are_what_the_library_makes_of_them(library) -> None:
    texts = random_texts(N_TEXTS, 1)
    pairs = list(zip(texts, reversed(texts), strict=True))
    for mine in (whole(library), from_gguf(library)):
        for given in (texts, pairs):
            wanted = library.encode_batch(given)
            found = mine.encode(given, 1 << 20)
            assert [one.ids for one in found] == [one.ids for one in wanted]
            assert [one.types for one in found] == [one.type_ids for one in wanted]


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
            assert [one.ids for one in found] == [one.ids for one in wanted]


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
    assert found.ids == cutting.encode(text).ids
    # Much text can be few tokens.
    (found,) = whole(library).encode(["the" + " " * 300_000 + "river"], 300_010)
    assert found.ids == library.encode("the" + " " * 300_000 + "river").ids


@EACH
def test_a_long_text_costs_no_more_in_each_of_its_pairs_than_a_pair_has(library) -> None:
    query, documents = "the river rises " * 1_000, random_texts(30, 4)
    cutting = copy_of(library)
    cutting.enable_truncation(24)
    pairs = [(query, text) for text in documents] + [(text, query) for text in documents]
    mine = whole(library)
    found = mine.encode(pairs, 24, "right")
    assert [one.ids for one in found] == [one.ids for one in cutting.encode_batch(pairs)]
    short, is_all, _ = mine._short(query, True, 24, "right")
    assert (len(short) < 24 * 20, is_all) == (True, False)
    with pytest.raises(TooLongError) as caught:
        mine.encode(pairs, 24)
    assert not caught.value.is_exact


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


def test_a_decoder_in_gguf_ends_texts_as_it_says() -> None:
    from tiny_tokenizers import byte_level_metadata

    tokenizer = Tokenizer.from_files(gguf_files(byte_level_metadata(add_eos_token=True)))
    begin, end = tokenizer.bos_id, min(tokenizer.eos_ids)
    (found,) = WholeTexts(tokenizer).encode(["h"], 10)
    assert (found.ids[0], found.ids[-1], len(found.ids)) == (begin, end, 3)


def test_longest_first_leaves_what_fits() -> None:
    for first in range(9):
        for second in range(9):
            for limit in range(9):
                left = longest_first(first, second, limit)
                assert sum(left) == min(first + second, limit)
                assert left[0] <= first
                assert left[1] <= second
