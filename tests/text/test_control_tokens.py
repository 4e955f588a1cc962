"""Which parts of a rendered chat are control tokens, and how long it takes to tell."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.text.control_tokens import ControlToken, ControlTokens

MARK = "\ufdd0"
TOKENS = [
    ControlToken(1, "<a>", lstrip=False, rstrip=False),
    ControlToken(2, "<a><b>", lstrip=False, rstrip=True),
    ControlToken(3, "<b>", lstrip=True, rstrip=False),
    ControlToken(4, "[a", lstrip=True, rstrip=True),
]


def specified(tokens: list[ControlToken], text: str) -> list[str | int]:
    """The same by one regular expression, which takes time for each token at each character."""
    tokens = sorted(tokens, key=lambda token: -len(token.text))
    pattern = "|".join(
        r"\s*" * token.lstrip + f"({re.escape(token.text)})" + r"\s*" * token.rstrip
        for token in tokens
    )
    parts: list[str | int] = []
    end = 0
    for match in re.finditer(pattern, text):
        parts += [text[end : match.start()], tokens[(match.lastindex or 0) - 1].id]
        end = match.end()
    parts.append(text[end:])
    return [part for part in parts if part != ""]


@given(st.text(["<", "a", "b", ">", "[", " ", "\n", MARK], max_size=40))
def test_splits_as_one_regular_expression_would(text):
    control = ControlTokens(TOKENS)
    assert control.split(text) == control.split(text, MARK) == specified(TOKENS, text)


@given(st.text(["<", "a", "b", ">", "[", " ", MARK], max_size=40))
def test_what_was_marked_is_no_token(text):
    control = ControlTokens(TOKENS)
    marked = control.mark(text.replace(MARK, ""), MARK)
    assert control.split(marked, MARK) == ([marked] if marked else [])


def test_a_token_across_two_pieces_is_found():
    control = ControlTokens(TOKENS)
    for before in range((1 << 14) - 8, (1 << 14) + 1):
        text = "x" * before
        assert control.split(text + "<a><b>x", MARK) == [text, 2, "x"]
        assert control.split(text + f"<{MARK}a>b{MARK}", MARK) == [text + f"<{MARK}a>b{MARK}"]


@pytest.mark.parametrize("text", ["plain text ", "<" + MARK, "<|reserved_", " "])
def test_time_does_not_grow_with_the_vocabulary_or_the_square_of_the_text(text):
    names = [f"<|reserved_special_token_{i}|>" for i in range(256)]
    control = ControlTokens(
        ControlToken(i, name, lstrip=True, rstrip=False) for i, name in enumerate(names)
    )
    text *= 200_000 // len(text)
    start = time.process_time()
    assert control.split(text, MARK) == [text]
    assert time.process_time() - start < 2  # takes 0.1 s; that regular expression 5 s and more
