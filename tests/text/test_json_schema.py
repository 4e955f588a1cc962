"""Schemas of which grammars know a part: what becomes of the rest."""

import json
import random

import pytest

from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from lanewise.text.json_schema import relaxed
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer


@pytest.fixture(scope="module")
def takes():
    """Whether the grammar of a schema takes a text; GrammarError if there is no grammar."""
    tokenizer = toy_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))

    def takes(schema, text):
        return matches(compiler.compile(GrammarSource.from_json_schema(schema)), tokenizer, text)

    return takes


# 2^53 + 1 and its neighbours are one double.
ODD = 2**53 + 1


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**60, 0.1, 0.30000000000000004, 10, 1.5e-10])
def test_numbers_that_are_doubles_are_meant_exactly(takes, value):
    text = f"{value:.11f}" if value == 1.5e-10 else json.dumps(value)
    for schema in ({"const": value}, {"enum": ["x", value]}, {"const": {"a": [value]}}):
        whole = text if "a" not in str(schema.get("const")) else f'{{"a": [{text}]}}'
        assert takes(schema, whole)
        assert not takes(schema, whole.replace(text, text + "1"))


@pytest.mark.parametrize("value", [ODD, -ODD, 2**64 - 1, 2**63, -(2**63), 10**30])
def test_integers_that_no_double_is_are_meant_exactly(takes, value):
    for schema, shown in (
        ({"const": value}, "{}"),
        ({"enum": [1, value, "x"]}, "{}"),
        ({"const": [{"a": value}]}, '[{{"a": {}}}]'),
        ({"type": "object", "properties": {"p": {"enum": [value]}}}, '{{"p": {}}}'),
        ({"type": "array", "items": {"anyOf": [{"const": value}, {"const": "x"}]}}, '["x", {}]'),
    ):
        assert takes(schema, shown.format(value))
        assert not takes(schema, shown.format(value + 1))
        assert not takes(schema, shown.format(float(value)))
    with pytest.raises(GrammarError, match="cannot be enforced beside patternProp"):
        takes({"type": "object", "patternProperties": {"^a": {"const": value}}}, "{}")


@pytest.mark.parametrize("value", [962148.5201964919])
def test_numbers_that_would_be_others_are_refused_by_name(takes, value):
    for schema in ({"const": value}, {"enum": [1, value]}, {"const": [{"a": value}]}):
        for nested in (schema, {"properties": {"p": {"items": schema}}}):
            with pytest.raises(GrammarError, match=f"'(const|enum)' .*{value}"):
                takes(nested, "1")


def test_shortest_texts_of_doubles_are_read_as_them_or_refused(takes):
    rng = random.Random(3)
    refused = 0
    for n_digits in range(1, 18):
        for _ in range(20):
            value = float(f"{rng.randrange(10 ** rng.randint(0, 9))}.{rng.randrange(10**n_digits)}")
            try:
                assert takes({"const": value}, repr(value).removesuffix(".0"))
            except GrammarError:
                refused += 1
                assert n_digits > 6
    assert refused < 40


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"minimum": ODD}, [2**53 + 2, 2**62], [2**53, 0]),
        ({"maximum": ODD}, [2**53, 0, -(2**62)], [2**53 + 2]),
        ({"exclusiveMinimum": 2**53}, [2**53 + 2], [2**53]),
        ({"exclusiveMaximum": -(2**53)}, [-(2**53) - 2], [-(2**53)]),
        ({"exclusiveMinimum": 2**53, "minimum": 2**53 + 8}, [2**53 + 8], [2**53 + 2]),
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, [0, -(2**60), 2**60], [2**64, -(2**64)]),
        ({"maximum": 2**64 - 1, "minimum": 0}, [0, 2**59], [-1, 2**65]),
        ({"minimum": 10**18}, [10**18, 2 * 10**18], [0, 10**17]),
        ({"exclusiveMaximum": -(10**18)}, [-2 * 10**18], [0, -(10**18)]),
        ({"minimum": -1e300, "maximum": 1e300}, [0, 5, -7], []),
    ],
)
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_beyond_doubles_let_nothing_in_that_breaks_them(takes, kind, bounds, good, bad):
    schema = {"type": kind, **bounds}
    assert all(takes(schema, str(value)) for value in good)
    assert not any(takes(schema, str(value)) for value in bad)


def test_bounds_that_no_grammar_knows_are_refused_by_name(takes):
    for schema in ({"type": "integer", "minimum": 2**70}, {"type": "number", "maximum": -1e20}):
        with pytest.raises(GrammarError, match=r"'m(in|ax)imum' .*2\^63"):
            takes(schema, "1")


# Those of JSON Schema, OpenAPI and pydantic that grammars do not know.
ANNOTATIONS = (
    *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
    *("json-pointer", "relative-json-pointer", "regex", "password", "byte", "binary", "color"),
    *("int64", "float", "path", "file-path", "directory-path", "json-string", "base64url", "", 7),
)


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_a_format_that_no_grammar_knows_is_an_annotation(takes, name):
    for schema in (
        {"type": "string", "format": name},
        {"type": ["string", "null"], "format": name},
        {"format": name},
        {"anyOf": [{"type": "string", "format": name}, {"type": "null"}]},
    ):
        assert takes(schema, '"any thing\\n"')
        assert takes({"properties": {"format": schema}, "type": "object"}, '{"format": "é"}')


@pytest.mark.parametrize(
    ("name", "short", "long"),
    [
        ("email", "a@b.c", "a" * 260 + "@b.c"),
        ("hostname", "a.b", "a." * 130 + "b"),
        ("uri", "http://a/b", "http://a/" + "b" * 2048),
        ("date-time", "2020-01-02T03:04:05.678Z", "2020-01-02T03:04:05." + "6" * 40 + "Z"),
        ("time", "03:04:05Z", "03:04:05." + "6" * 40 + "Z"),
        ("duration", "P1D", "P" + "1" * 70 + "D"),
    ],
)
def test_strings_of_formats_end(takes, name, short, long):
    schema = {"type": "string", "format": name}
    assert takes(schema, f'"{short}"')
    assert not takes(schema, f'"{long}"')
    assert takes(schema | {"maxLength": 3000}, f'"{long}"')


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("date", "2020-01-02"),
        ("ipv4", "123.123.123.123"),
        ("ipv6", "1234:1234:1234:1234:1234:1234:1234:1234"),
        ("uuid", "12345678-1234-4234-8234-123456789abc"),
        ("uri", "http://a/" + "b" * 2039),
    ],
)
def test_strings_of_formats_may_be_as_long_as_they_get(takes, name, longest):
    assert takes({"type": "string", "format": name}, f'"{longest}"')


# What cannot be enforced, a text that is right without it, and the words that name it.
BEYOND = [
    ({"type": "array", "uniqueItems": True}, "[1, 1]", "'uniqueItems'"),
    ({"not": {"type": "string"}}, '"a"', "'not'"),
    ({"type": "string", "if": {}, "then": {"maxLength": 3}}, '"long"', "'if'"),
    ({"type": "array", "contains": {"type": "string"}, "maxContains": 1}, "[]", "'contains'"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, '{"b": 1}', "'propertyNames'"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, '{"a": 1}', "'dependentRequired'"),
    ({"type": "object", "unevaluatedProperties": False}, '{"a": 1}', "'unevaluatedProperties'"),
    ({"type": "string", "pattern": "(?=a)b"}, '"c"', "'pattern'"),
    ({"type": "string", "format": "email", "pattern": r"^(?!\.)x"}, '"a@b.c"', "'pattern'"),
    ({"type": "string", "pattern": r"(a)\1"}, '"c"', "'pattern'"),
    ({"const": 962148.5201964919}, "5", "'const'"),
    ({"enum": [1, 962148.5201964919], "type": "number"}, "7", "'enum'"),
    ({"type": "integer", "minimum": 10**30}, "7", "'minimum'"),
]


@pytest.mark.parametrize(("schema", "text", "named"), BEYOND, ids=lambda part: str(part)[:40])
def test_what_cannot_be_enforced_is_refused_or_left_out_and_told(takes, schema, text, named):
    nested = {"type": "object", "properties": {"p": {"items": schema}, "q": schema}}
    with pytest.raises(GrammarError, match=named):
        takes(schema, text)
    with pytest.raises(GrammarError, match=rf"properties\.p\.items: .*{named}"):
        takes(nested, "{}")
    made, left_out = relaxed(schema)
    assert takes(made, text)
    assert named in left_out[0]
    made, left_out = relaxed(nested)
    assert takes(made, f'{{"p": [{text}], "q": {text}}}')
    assert any(line.startswith("properties.q: ") and named in line for line in left_out)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "uniqueItems": False, "contains": True},
        {"type": "object", "unevaluatedProperties": True, "dependentRequired": {}},
        {"type": "object", "properties": {"not": {"type": "integer"}, "if": True}},
        {"const": {"uniqueItems": True, "format": "color"}},
        {"enum": [{"pattern": "(?=a)"}]},
        {"type": "string", "pattern": r"\(\?=a\\1"},
        {"type": "string", "default": {"not": 1}, "examples": [ODD], "title": "not"},
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_says_nothing_or_is_no_keyword_is_taken(takes, schema):
    assert relaxed(schema)[1] == []
    takes(schema, "1")


def test_one_of_several_that_cannot_be_told_apart_is_any_where_nobody_insists(takes):
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    with pytest.raises(GrammarError, match="oneOf"):
        takes(schema, "1")
    assert takes(relaxed(schema)[0], "1")
