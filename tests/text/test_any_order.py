"""Arguments come in any order, each once; what has more has its schema's order."""

import json
from itertools import chain, combinations, permutations

import pytest

from lanewise.text.answers.any_order import MAX_TEXT, MOST
from lanewise.text.answers.calls import argument_schema
from lanewise.text.answers.grammar_values import arguments_rule
from lanewise.text.answers.json_calls import HERMES, MISTRAL
from lanewise.text.answers.named_calls import MISTRAL_NAMED
from lanewise.text.answers.python_calls import LFM2, OLMO
from lanewise.text.answers.rules import ANY_TEXT, lark
from lanewise.text.answers.tagged_calls import GLM, QWEN3_CODER, SEED
from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from lanewise.text.json_schema import relaxed
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

SAID = {"path": "a/b", "content": '"so"\n', "mode": {"bits": [7, 5]}, "force": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "mode": {"$ref": "#/$defs/mode"},
        "force": {"type": "boolean"},
    },
    "required": ["content", "path"],
    "$defs": {"mode": {"type": "object", "properties": {"bits": {"type": "array"}}}},
}


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer(("[TOOL_CALLS]", "[ARGS]"))


@pytest.fixture(scope="module")
def takes(tokenizer):
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)

    def takes(source):
        compiled = compiler.compile(source)
        return lambda text: matches(
            compiled, tokenizer, tokenizer.encode(text, add_bos=False, parse_special=True)
        )

    return takes


def arguments(schema):
    return lark([f"start: {arguments_rule(schema)}"])


def orders(keys):
    subsets = chain.from_iterable(combinations(keys, n) for n in range(len(keys) + 1))
    return chain.from_iterable(map(permutations, subsets))


@pytest.mark.parametrize("schema", [SCHEMA, relaxed(SCHEMA)[0]], ids=["strict", "relaxed"])
def test_every_order_of_every_set_with_what_is_required(takes, schema):
    obeys = takes(arguments(schema))
    for keys in orders(SAID):
        text = json.dumps({key: SAID[key] for key in keys})
        assert obeys(text) == ({"path", "content"} <= set(keys)), text


def test_each_comes_once_and_is_what_its_schema_says(takes):
    obeys = takes(arguments(SCHEMA))
    for wrong in (
        '{"content": "a", "path": "b", "content": "c"}',
        '{"content": "a", "path": "b", "other": 1}',
        '{"content": 1, "path": "b"}',
        '{"content": "a", "path": "b", "mode": {"bits": 7}}',
        '{"content": "a", "path": "b", }',
        '{, "content": "a", "path": "b"}',
    ):
        assert not obeys(wrong), wrong


def test_more_properties_than_there_are_rules_for_keep_their_order(takes):
    properties = {f"p{i}": {"type": "integer"} for i in range(MOST + 1)}
    schema = {"type": "object", "properties": properties, "required": ["p0", "p1"]}
    obeys = takes(arguments(schema))
    assert obeys('{"p0": 0, "p1": 1}')
    assert not obeys('{"p1": 1, "p0": 0}')
    del properties[f"p{MOST}"]
    assert takes(arguments(schema))('{"p4": 0, "p1": 1, "p0": 0}')


def test_many_functions_share_what_rules_of_orders_may_take():
    properties = {f"p{i}": {"type": "string"} for i in range(MOST)}
    schema = {"type": "object", "properties": properties}
    one, many = (len(arguments_rule(schema, n)) for n in (1, 128))
    assert one > 5 * many
    assert 128 * many < MAX_TEXT


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {"type": "integer"}}},
        {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"enum": [{"a": 1, "b": 2}]},
        {"x-guidance": {"whitespace_flexible": True}},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_has_no_such_rules_is_held_to_its_schema_all_the_same(takes, more):
    own = {name: {"type": "integer"} for name in ("a", "b")}
    schema = {"type": "object", "properties": own, "required": ["a", "b"], **more}
    obeys = takes(arguments(schema))
    assert obeys('{"a": 1, "b": 2}')
    assert not obeys('{"a": "x", "b": 2}')
    same = takes(GrammarSource.from_json_schema(argument_schema(schema)))
    assert obeys('{"b": 2, "a": 1}') == same('{"b": 2, "a": 1}')


def test_what_cannot_be_enforced_is_an_error_as_before():
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "x": {"not": {"type": "null"}}}}
    with pytest.raises(GrammarError, match="not"):
        arguments_rule(schema)


@pytest.mark.parametrize(
    ("form", "head", "end"),
    [
        (HERMES, '{"name": "write", "arguments": ', "}\n</tool_call>"),
        (MISTRAL, '{"name": "write", "arguments": ', "}"),
        (MISTRAL_NAMED, "write[ARGS]", ""),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_forms_in_json_take_them(tokenizer, takes, form, head, end):
    rules = form.rules({"write": SCHEMA}, tokenizer, parallel=False)
    obeys = takes(lark(["start: call", *rules]))
    for keys in (SAID, reversed(SAID)):
        assert obeys(head + json.dumps({key: SAID[key] for key in keys}) + end)


TAGGED = {
    QWEN3_CODER: ("<parameter={}>\n{}\n</parameter>\n", "\n<function=write>\n", "</function>\n"),
    SEED: ("<parameter={}>{}</parameter>\n", "\n<function=write>\n", "</function>\n"),
    GLM: ("<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "write\n", ""),
}


@pytest.mark.parametrize("form", TAGGED, ids=lambda form: form.name)
def test_forms_between_tags_take_them(tokenizer, takes, form):
    one, head, end = TAGGED[form]
    rules = form.rules({"write": SCHEMA}, tokenizer, parallel=False)
    obeys = takes(lark(["start: call_0", *rules, ANY_TEXT]))
    texts = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in SAID.items()
    }
    for keys in orders(texts):
        text = head + "".join(one.format(key, texts[key]) for key in keys) + end + form.end
        assert obeys(text) == ({"path", "content"} <= set(keys)), text
    twice = "".join(one.format(key, "x") for key in ("path", "content", "path"))
    assert not obeys(head + twice + end + form.end)


@pytest.mark.parametrize("form", [LFM2, OLMO], ids=lambda form: form.name)
def test_python_forms_take_them(tokenizer, takes, form):
    rules = form.rules({"write": SCHEMA}, tokenizer, parallel=False)
    obeys = takes(lark(["start: call_0", *rules, ANY_TEXT]))
    words = {key: str(value) if value is True else json.dumps(value) for key, value in SAID.items()}
    for keys in orders(SAID):
        text = "write(" + ", ".join(f"{key}={words[key]}" for key in keys) + ")"
        assert obeys(text) == ({"path", "content"} <= set(keys)), text


def test_between_tags_more_properties_keep_their_order_and_others_come_last(tokenizer, takes):
    one, head, end = TAGGED[SEED]

    def obeys(schema, *keys):
        rules = SEED.rules({"write": schema}, tokenizer, parallel=False)
        text = head + "".join(one.format(key, 1) for key in keys) + end + SEED.end
        return takes(lark(["start: call_0", *rules, ANY_TEXT]))(text)

    def schema(count, **more):
        properties = {f"p{i}": {"type": "integer"} for i in range(count)}
        return {"type": "object", "properties": properties, "required": ["p0", "p1"], **more}

    assert obeys(schema(MOST), "p4", "p1", "p0")
    assert not obeys(schema(MOST + 1), "p1", "p0")
    assert obeys(schema(MOST + 1), "p0", "p1", f"p{MOST}")
    more = {"additionalProperties": {"type": "integer"}}
    assert obeys(schema(2, **more), "p1", "p0", "x")
    assert not obeys(schema(2, **more), "p1", "x", "p0")


def test_a_form_of_the_answer_keeps_the_order_of_its_schema(takes):
    obeys = takes(GrammarSource.from_json_schema(SCHEMA))
    assert obeys('{"path": "a", "content": "b"}')
    assert not obeys('{"content": "b", "path": "a"}')
