"""Grammars of every kind, compiled for a model's tokens."""

import json

import pytest

from data_files import data
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.text.grammar import (
    CACHED_GRAMMARS,
    GrammarCompiler,
    GrammarError,
    GrammarSource,
)
from lanewise.text.tokenizer import Tokenizer
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"type": "integer"}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
schema, choices, grammar = (
    GrammarSource.from_json_schema,
    GrammarSource.from_choices,
    GrammarSource.from_grammar,
)


def regex(text):
    return GrammarSource("regex", text)


def compiler_of(tokenizer):
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return compiler_of(tokenizer)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (schema(SCHEMA), '{"name": "the inner", "n": -12}', '{"name": "the inners", "n": 1}'),
        (schema(json.dumps(SCHEMA)), '{"name": "", "n": 0}', '{"name":"","n":0}'),
        (
            schema({**SCHEMA, "x-guidance": {"whitespace_flexible": True}}),
            '{"name":"","n":\n0}',
            "1",
        ),
        (schema(True), "[1, null]", "1 2"),
        (regex("[ab]{2,3}|ü"), "aba", "abab"),
        (regex("[ab]{2,3}|ü"), "ü", "u"),
        (choices(['say "x"\n', "y/z\\", "😀"]), 'say "x"\n', "say"),
        (choices(['say "x"\n', "y/z\\", "😀"]), "y/z\\", "y/z"),
        (choices(['say "x"\n', "y/z\\", "😀"]), "😀", ""),
        (grammar('start: "a" NUMBER\nNUMBER: /[0-9]+/'), "a12", "a"),
        (grammar('root ::= "a" num ("," num)*\nnum ::= [0-9]+ # digits'), "a1,22", "a1,"),
    ],
)
def test_a_grammar_takes_what_it_describes(compiler, tokenizer, source, good, bad):
    compiled = compiler.compile(source)
    assert matches(compiled, tokenizer, good)
    assert not matches(compiled, tokenizer, bad)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (lambda: schema({"uniqueItems": True, "x-guidance": {"lenient": True}}), "uniqueItems"),
        (lambda: schema({"type": "strin"}), "strin"),
        (lambda: schema("{"), "not JSON"),
        (lambda: schema("[1]"), "an object or true"),
        (lambda: schema(False), "nothing matches"),
        (lambda: schema({"x-guidance": 1}), "x-guidance"),
        (lambda: regex("[ab"), "unclosed character class"),
        (lambda: regex("(?=a)b"), "look-around"),
        (lambda: grammar("start: other"), "unknown name"),
        (lambda: grammar('root ::= "a'), "GBNF"),
        (lambda: grammar("root ::= other"), "GBNF"),
        (lambda: grammar("root ::= " + "(" * 5000), "GBNF|nested"),
        (lambda: grammar("\n".join(f"r{i} ::= r{i + 1}" for i in range(600))), "too large"),
        (
            lambda: schema({"type": "string", "pattern": "(a|b|ab){1000}c", "maxLength": 9999}),
            "regex",
        ),
        (
            lambda: grammar("start: " + " | ".join(f'a b "{i}"' for i in range(9)) + "\na: a"),
            "name",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(compiler, make, says):
    with pytest.raises(GrammarError, match=says) as caught:
        compiler.compile(make())
    assert "\n" not in str(caught.value)


def test_equal_grammars_are_compiled_once_and_few_are_kept(tokenizer):
    compiler = compiler_of(tokenizer)
    first = compiler.compile(schema(SCHEMA))
    assert compiler.cached(schema(dict(SCHEMA))) is first
    for i in range(CACHED_GRAMMARS):
        compiler.compile(regex(f"a{{{i + 1}}}"))
    assert compiler.cached(schema(SCHEMA)) is None
    assert compiler.cached(regex("a{2}")) is not None


@pytest.mark.parametrize("name", ["models/stories260K-hf", "models/stories260K-f32.gguf"])
def test_forced_tokens_spell_what_is_forced_with_any_vocabulary(name):
    """SentencePiece would put a space before each text."""
    with open_checkpoint(data(name)) as checkpoint:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    matcher = compiler_of(tokenizer).compile(schema(SCHEMA)).new_matcher()
    spelled = b"".join(map(tokenizer.token_bytes, matcher.compute_ff_tokens()))
    assert spelled
    assert b'{"name": "'.startswith(spelled)
    for text in ("a", " a", "  a b\n", '{"x": 1}', "é😀"):
        ids = tokenizer.encode_inside(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
