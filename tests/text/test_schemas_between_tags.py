"""Arguments without JSON around them obey their schemas all the same, or these are refused."""

import json
import random
from functools import cache

import jsonschema
import numpy as np
import pytest

from lanewise.api.conversations import FunctionSpec
from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.families import PlainFormat
from lanewise.text.answers.tagged_calls import GLM, GLM_TIGHT, MINIMAX, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from lanewise.text.json_schema import relaxed
from tool_schemas import SNOWFLAKE, tool_schema
from topics import cases
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

FORMS = {form.name: form for form in (QWEN3_CODER, GLM, GLM_TIGHT, SEED, MINIMAX, GEMMA)}
N_SCHEMAS = cases(8, 200)  # for each form
MAX_TOKENS = 600


@cache
def tokenizer():
    return toy_tokenizer()


@cache
def compiler():
    return GrammarCompiler(tokenizer(), tokenizer().vocab_size + len(tokenizer().unused_ids))


def grammar(form, schema):
    return PlainFormat(form).call_grammar(
        {"f": schema}, tokenizer(), Start.CONTENT, required=True, parallel=False
    )


def drawn(source, endings, rng):
    """A text of a grammar, whose values end early; None if it is too long."""
    matcher = compiler().compile(source).new_matcher()
    n_tokens, text = tokenizer().vocab_size, b""
    for _ in range(MAX_TOKENS):
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[
            :n_tokens
        ]
        allowed = [int(i) for i in np.flatnonzero(mask) if i not in tokenizer().eos_ids]
        if not allowed:
            return text.decode()
        token = rng.choice(allowed)
        for ending in map(str.encode, endings):  # which the text may have begun
            held = next(n for n in range(len(ending) - 1, -1, -1) if text.endswith(ending[:n]))
            wanted = [i for i in allowed if tokenizer().token_bytes(i) == ending[held : held + 1]]
            if wanted and rng.random() < 0.8:
                token = wanted[0]
        assert matcher.consume_token(token)
        text += tokenizer().token_bytes(token)
        if matcher.is_accepting() and matcher.is_stopped():
            return text.decode()
    return None


def arguments_of(form, schema, text, rng):
    """What a parser makes of a text, which is the same however it comes."""
    found = []
    for cuts in ([], sorted(rng.sample(range(len(text)), min(9, len(text))))):
        parser = form.parser({"f": schema})
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            parser.push(text[begin:end])
        parser.push("", last=True)
        (call,) = parser.calls
        found.append(call["function"]["arguments"])
    assert found[0] == found[1], text
    return json.loads(found[0])


@pytest.mark.parametrize("name", FORMS)
def test_arguments_obey_the_schemas_of_real_libraries(name):
    form, n_held, n_refused = FORMS[name], 0, 0
    endings = (form.quote, "}", "]") if form is GEMMA else ("\n" + form.around_value[1], form.end)
    if name not in ("qwen3-coder", "gemma"):
        endings = (form.around_value[1], form.end)
    for seed in range(N_SCHEMAS):
        rng = random.Random(seed)
        spec = FunctionSpec(name="f", parameters=tool_schema(seed), strict=True)
        try:
            source = grammar(form, spec.parameters)
        except GrammarError:
            n_refused += 1
            continue
        text = drawn(source, endings, rng)
        if text is None:
            continue
        arguments = arguments_of(form, spec.parameters, text, rng)
        jsonschema.validate(
            arguments,
            spec.parameters,
            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
        )
        n_held += 1
    assert n_held > 0.6 * N_SCHEMAS, (n_held, n_refused)
    assert n_refused < 0.3 * N_SCHEMAS


def call(value, key="a"):
    return (
        f"<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n"
        "</tool_call>"
    )


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"anyOf": [{"const": "x"}, {"const": "y"}]}, ["x", "y"], ["value_1", "xy", ""]),
        ({"anyOf": [{"enum": ["x"]}, {"type": "null"}]}, ["x", "null"], ["y", "nul"]),
        ({"oneOf": [{"const": "x"}, {"type": "boolean"}]}, ["x", "true"], ["yes"]),
        ({"allOf": [{"type": "string"}, {"maxLength": 2}]}, ["", "ab"], ["abc"]),
        ({"type": "string", "pattern": "^[a-z]+$"}, ["abc"], ["ABC", "", "a b"]),
        ({"type": "string", "pattern": "b/c"}, ["b/c", "ab/cd\n"], ["b c"]),
        ({"type": "string", "format": "date"}, ["2024-02-28"], ["today", "2024-02-30"]),
        ({"type": "string", "format": "ipv4"}, ["10.0.0.255"], ["10.0.0.256"]),
        ({"type": "string", "minLength": 2}, ["ab", "abc"], ["a"]),
        ({"enum": [SNOWFLAKE, "x"]}, [str(SNOWFLAKE), "x"], [str(SNOWFLAKE + 1)]),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 5}]}, ["4", "a"], ["9"]),
        ({"type": "array", "items": {"const": 1}, "maxItems": 1}, ["[1]", "[]"], ["[1, 1]"]),
    ],
    ids=lambda one: json.dumps(one)[:50] if isinstance(one, dict) else "",
)
def test_a_value_between_tags_is_what_its_schema_says(schema, good, bad):
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    compiled = compiler().compile(grammar(QWEN3_CODER, whole))
    taken = [matches(compiled, tokenizer(), call(value)) for value in (*good, *bad)]
    assert taken == [True] * len(good) + [False] * len(bad)


def test_what_has_no_form_between_tags_is_an_error():
    for schema in (
        {"type": "string", "pattern": r"a\b"},
        {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]},
        {"$ref": "#/$defs/Loop"},
        {"type": "string", "not": {"const": "x"}},
    ):
        loop = {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "string"}]}
        whole = {"type": "object", "properties": {"a": schema}, "$defs": {"Loop": loop}}
        with pytest.raises(GrammarError):
            grammar(QWEN3_CODER, whole)


def test_a_list_of_one_has_a_form_in_braces():
    for most, good, bad in ((1, "[1]", "[1,1]"), (2, "[1,1]", "[1,1,1]"), (0, "[]", "[1]")):
        items = {"type": "array", "items": {"type": "integer"}, "maxItems": most}
        whole = {"type": "object", "properties": {"a": items}, "required": ["a"]}
        compiled = compiler().compile(grammar(GEMMA, whole))
        begin, end = "<|tool_call>call:f{a:", "}<tool_call|>"
        taken = [matches(compiled, tokenizer(), begin + one + end) for one in (good, bad)]
        assert taken == [True, False], most


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"const": SNOWFLAKE}, str(SNOWFLAKE), str(SNOWFLAKE - 1)),
        ({"enum": ["a", SNOWFLAKE, 10**30]}, str(10**30), str(10**30 + 1)),
        (
            {
                "type": "object",
                "properties": {"id": {"$ref": "#/$defs/Id"}, "n": {"type": "null"}},
                "required": ["id"],
                "$defs": {"Id": {"const": SNOWFLAKE}},
            },
            f'{{"id": {SNOWFLAKE}}}',
            f'{{"id": {SNOWFLAKE + 1}}}',
        ),
        (
            {"type": "array", "items": {"enum": [SNOWFLAKE, 1]}, "minItems": 1},
            f"[1, {SNOWFLAKE}]",
            "[]",
        ),
    ],
)
def test_large_integers_have_all_their_digits(schema, good, bad):
    compiled = compiler().compile(GrammarSource.from_json_schema(schema))
    assert [matches(compiled, tokenizer(), one) for one in (good, bad)] == [True, False]


def test_odd_keywords_leave_the_rest_as_it_is():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "any"},
            "b": {"type": "string", "maxLength": "9", "enum": ["x"]},
            "c": {"anyOf": [], "type": "integer"},
            "d": {"minimum": 3, "exclusiveMinimum": True, "type": "integer"},
        },
        "required": None,
    }
    made, left_out = relaxed(schema)
    assert [problem.split(":")[0] for problem in left_out] == [
        *("properties.a", "properties.b", "properties.c")
    ]
    assert made["properties"] == {
        "a": {},
        "b": {"type": "string", "enum": ["x"]},
        "c": {"type": "integer"},
        "d": {"type": "integer", "exclusiveMinimum": 3},
    }
    assert "required" not in made
