"""Patterns of names of modules: what is accepted matches as PEFT's regular expressions do."""

import random
import re

import pytest

from lanewise.loading.adapters.name_patterns import MAX_TOKENS, matches, parse_pattern

Q0 = "model.layers.0.self_attn.q_proj"
PLACES = ["a", "b", r"\.", ".", r"\d", "[0-9]", "[^a]", "[ab.]", r"\w", "1", "^", "$"]
REPEATS = ["", "", "", "*", "+", "?", ".*?"]


def in_peft(pattern: str, name: str) -> bool:
    """PEFT's get_pattern_key."""
    return re.match(rf"(.*\.)?({pattern})$", name) is not None


@pytest.mark.parametrize(
    ("pattern", "means"),
    [
        (r"layers\.0\..*q_proj", True),
        (r"layers.0.*q_proj", True),
        (r".*layers\.(0|1|12)\.self_attn\.(q|k)_proj", True),
        (r"model\.layers\.\d+\.self_attn\.(?:q|v)_proj$", True),
        (r"^model.layers.[0-9]+.*(_proj)?", True),
        (r"(self_attn|mlp).q_proj", True),
        (r"k_proj|.*q_proj", True),
        (r"^layers\.0\..*q_proj", False),
        (r"layers\.[1-9]\..*", False),
        (r"elf_attn\.(q|k)_proj", False),
        (r"layers\.0\..*q", False),
    ],
)
def test_what_people_write(pattern: str, means: bool) -> None:
    parsed = parse_pattern(pattern)
    assert parsed is not None
    assert matches(parsed, Q0) == means == in_peft(pattern, Q0)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+", "(a|b)*", "a{2}", "(?i)a", "(?=a)b", r"(a)\1", r"\bq", "a**", "a*+", "*a", "(a"),
        *("a)", "[b-a]", "[", "a b", "^*", "a" * (MAX_TOKENS + 1)),
    ],
)
def test_what_is_not_accepted(pattern: str) -> None:
    assert parse_pattern(pattern) is None


def expression(draw: random.Random, depth: int = 0) -> str:
    """A random expression, not always one that can be read."""
    text = ""
    for _ in range(draw.randint(0, 4)):
        if draw.random() < 0.2 and depth < 3:
            inner = "|".join(expression(draw, depth + 1) for _ in range(draw.randint(1, 2)))
            text += f"({inner}){draw.choice(['', '', '?'])}"
        else:
            text += draw.choice(PLACES) + draw.choice(REPEATS)
    return text


def test_random_expressions_match_as_those_of_python() -> None:
    draw, found = random.Random(1), [0, 0]
    for _ in range(1500):
        text = expression(draw)
        parsed = parse_pattern(text)
        if parsed is None:
            continue
        for _ in range(4):
            name = "".join(draw.choices("ab.1", k=draw.randint(0, 7)))
            wanted = in_peft(text, name)
            assert matches(parsed, name) == wanted, (text, name)
            found[wanted] += 1
    assert min(found) > 500


def test_an_expression_that_python_does_not_finish() -> None:
    parsed = parse_pattern(".*a" * 100 + "b")
    assert parsed is not None
    assert not matches(parsed, "a" * 300)
