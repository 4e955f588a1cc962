"""Numbers of JSON in grammars end; what looks like them elsewhere goes on."""

import asyncio
import json
import re

import numpy as np
import pytest

from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.text.grammar import GrammarCompiler, GrammarSource
from lanewise.text.json_numbers import NumberEnds
from toy_server import outputs_of
from toy_tokenizer import toy_tokenizer

TOKENIZER = toy_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size + len(TOKENIZER.unused_ids))
DIGITS = dict.fromkeys("0123456789", 60.0)


def drawn(engine, source, liked="", **params):
    """What a model says that wants digits above all, but for the characters that it likes more."""
    wanted = {"e": -90.0, "E": -90.0} | DIGITS | dict.fromkeys(liked, 90.0)
    bias = tuple((ord(character), value) for character, value in wanted.items())
    settings = {"seed": 1, "max_tokens": 90, "stop_token_ids": TOKENIZER.eos_ids} | params
    settings["logit_bias"] = bias
    one = GenerationRequest(
        list(b"abc"), SamplingParams(**settings), grammar=COMPILER.compile(source)
    )

    async def run():
        (outputs,) = await outputs_of(engine, one)
        return outputs

    outputs = asyncio.run(run())
    ids = [output.sampled.token for output in outputs if output.sampled]
    return TOKENIZER.decode(ids), outputs[-1].finish_reason


@pytest.fixture
def engine(start):
    return start()[0]


schema = GrammarSource.from_json_schema


@pytest.mark.parametrize(
    ("value", "liked", "expected"),
    [
        ({"type": "number"}, "", r"-?\d{17}"),
        ({"type": "number"}, ".", r"-?\d\.\d{16}"),
        ({"type": "number"}, "e", r"-?\de\d\d"),
        ({"type": "integer"}, "", r"-?\d{17}"),
        ({"type": ["number", "null"]}, "", r"-?\d{17}"),
        ({}, "", r"-?\d{17}"),
        ({"type": "integer", "minimum": 10**18}, "", r"\d{19}"),
        ({"type": "string", "pattern": r"^\d{30}$"}, "", r'"\d{30}"'),
        ({"type": "string", "maxLength": 30}, "", r'"\d{30}"'),
    ],
    ids=str,
)
def test_numbers_end_where_they_may_after_seventeen_digits(engine, value, liked, expected):
    whole = {"type": "object", "properties": {"n": value, "m": value}, "required": ["n", "m"]}
    text, reason = drawn(engine, schema(whole | {"additionalProperties": False}), liked)
    assert re.fullmatch(rf'\{{"n": {expected}, "m": {expected}\}}', text), text
    assert json.loads(text)
    assert reason == "stop"
    text, _ = drawn(engine, schema(value), liked)
    assert re.fullmatch(expected, text), text
    text, _ = drawn(engine, schema(value), liked, logprobs=0)
    assert re.fullmatch(expected, text), text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GrammarSource.from_regex(r": \d{25,40}"), r": \d{40}"),
        (GrammarSource.from_grammar('start: "[" /[0-9]{40}/ "]"'), r"\[\d{40}\]"),
        (
            GrammarSource.from_grammar('start: ": " TEXT %json {"type": "null"}\nTEXT: /.{40}/'),
            r": \D*\d{25,}null",
        ),
        (
            GrammarSource.from_grammar('start: TEXT %json {"type": "integer"}\nTEXT: / .{40}: /'),
            r" .{40}: \d{17}",
        ),
    ],
    ids=lambda part: getattr(part, "text", ""),
)
def test_digits_that_are_no_number_of_json_go_on(engine, source, expected):
    text, reason = drawn(engine, source)
    assert re.fullmatch(expected, text), text
    assert reason == "stop"


def test_tokens_of_many_digits_and_control_tokens_are_counted():
    texts = [b"a", b"1", b"123", b".", b".5", b"0" * 18, b"e12", b"e123", b",", b""]
    ends = NumberEnds(texts, 1)

    def left(*before):
        mask = np.array([0b0011_1111_1110], dtype=np.uint32)
        ends.limit(ends.extend(ends.start, before), mask)
        return [i for i in range(len(texts)) if int(mask[0]) >> i & 1]

    assert left() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert left(1) == [1, 2, 3, 4, 6, 8, 9]
    assert left(2, 2, 2, 2, 2) == [1, 3, 4, 6, 8, 9]
    assert left(2, 2, 2, 2, 2, 1) == [1, 3, 4, 6, 8, 9]
    assert left(2, 2, 2, 2, 2, 1, 1) == [6, 8, 9]
    assert left(9, 2, 3, 2, 2, 2, 2, 1) == [1, 3, 4, 6, 8, 9]
    assert left(1, 6) == [3, 4, 6, 7, 8, 9]
    assert left(0, 2, 2, 2, 2, 2, 2) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
