"""The index of prompt lookup against a search through the whole text."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.engine.guessing.prompt_lookup import MAX_MATCH, MAX_PLACES, PromptLookup


def search(tokens: list[int]) -> int:
    """Length of the longest end that stood before, among the newest places of its last two."""
    end = len(tokens)
    lengths = []
    for place in range(end - 1, 1, -1):
        if tokens[place - 2 : place] == tokens[-2:] and len(lengths) < MAX_PLACES:
            pairs = zip(reversed(tokens[:place]), reversed(tokens), strict=False)
            alike = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            lengths.append(min(MAX_MATCH, sum(1 for _ in alike)))
    return max(lengths, default=0)


@given(
    prompt=st.lists(st.integers(0, 3), max_size=60),
    output=st.lists(st.integers(0, 3), max_size=60),
    every=st.integers(1, 7),
)
def test_the_longest_repeated_end_is_found(prompt, output, every):
    lookup = PromptLookup(prompt, len(output))
    tokens = list(prompt)
    for token in [None, *output]:
        if token is not None:
            tokens.append(token)
        if len(tokens) % every:
            continue  # an index that was not asked for some time is as good
        place, length = lookup.find(tokens)
        assert length == search(tokens)
        if length:
            assert place < len(tokens)
            assert tokens[place - length : place] == tokens[-length:]


def test_a_copy_grows_by_itself():
    prompt = [1, 2, 3, 4, 1, 2]
    one = PromptLookup(prompt, 10)
    other = one.copy()
    assert one.find([*prompt, 3]) == (3, 3)
    assert other.find([*prompt, 5, 1, 2]) == (6, 2)
    assert one.find([*prompt, 3, 4]) == (4, 4)


@pytest.mark.parametrize("n_tokens", [0, 1, 2])
def test_texts_too_short_to_repeat_anything(n_tokens):
    assert PromptLookup([7] * n_tokens, 4).find([7] * n_tokens) == (0, 0)


def test_ids_of_large_vocabularies():
    prompt = [2**31 + 5, 2**32 - 1, 9, 2**31 + 5, 2**32 - 1]
    assert PromptLookup(prompt, 1).find(prompt) == (2, 2)
    grown = PromptLookup(prompt[:1], 4)
    assert grown.find(prompt) == (2, 2)
