"""Calls as tags within tags: what grammars take, and what is read of them however they are cut."""

import json
import random

import pytest

from growth import grows_no_faster
from lanewise.text.answers.families import PlainFormat
from lanewise.text.answers.nested_calls import MINIMAX_M3
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import GrammarCompiler, GrammarError
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

NS = MINIMAX_M3.mark
TRIP = {
    "type": "object",
    "properties": {
        "to": {"type": "string"},
        "days": {"type": "integer"},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1, "maxItems": 3},
        "options": {"type": "object", "properties": {"item": {"type": "boolean"}, "by": {}}},
        "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "number"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}},
        "kind": {"enum": ["a", 5, None]},
    },
    "required": ["to"],
    "$defs": {
        "stop": {
            "type": "object",
            "properties": {"at": {"type": "string"}, "next": {"$ref": "#/$defs/stop"}},
            "required": ["at"],
            "additionalProperties": False,
        }
    },
}
SHALLOW = {
    **TRIP,
    "$defs": {"stop": {"properties": {"at": {"type": "string"}}, "required": ["at"]}},
}
TOOLS = {"trip": SHALLOW, "now": None}
FREE = {"f": {"properties": {"a": {"type": "integer"}, "any": {}}, "additionalProperties": True}}


def to_xml(value):
    """As the family's template writes values."""
    if isinstance(value, dict):
        return "".join(tag(key, one) for key, one in value.items() if one is not None)
    if isinstance(value, list):
        return "".join(tag("item", one) for one in value)
    return value if isinstance(value, str) else json.dumps(value)


def tag(key, value):
    return f"{NS}<{key}>{to_xml(value)}{NS}</{key}>"


def written(*calls):
    texts = [f'{NS}<invoke name="{name}">{to_xml(args)}{NS}</invoke>\n' for name, args in calls]
    return f"{NS}<tool_call>\n{''.join(texts)}{NS}</tool_call>"


@pytest.fixture(scope="module", params=["text", "token"])
def tokenizer(request):
    return toy_tokenizer((NS,) if request.param == "token" else ())


@pytest.fixture(scope="module")
def takes(tokenizer):
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))

    def takes(text, tools=TOOLS, **how):
        how = {"required": True, "parallel": True, **how}
        source = PlainFormat(MINIMAX_M3).call_grammar(tools, tokenizer, Start.CONTENT, **how)
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        return matches(compiler.compile(source), tokenizer, ids)

    return takes


def read(text, tools=TOOLS, cut=None):
    parser = PlainFormat(MINIMAX_M3).parser(Start.CONTENT, tools)
    size = cut or len(text)
    pieces = [text[i : i + size] for i in range(0, len(text), size)] or [""]
    content, streamed = "", []
    for i, piece in enumerate(pieces):
        content += parser.push(piece, last=i == len(pieces) - 1)[1]
        for delta in parser.take_deltas():
            if delta["index"] == len(streamed):
                streamed.append("")
            streamed[delta["index"]] += delta["function"]["arguments"]
    functions = [call["function"] for call in parser.calls]
    assert streamed == [one["arguments"] for one in functions]
    return content, [(one["name"], one["arguments"]) for one in functions]


VALUES = [
    {"to": "Bonn\n<b>", "days": 3},
    {"to": "", "days": -3},
    {"to": "x", "stops": [{"at": "A"}, {"at": " b </at> "}]},
    {"to": "x", "options": {"item": True, "by": {"deep": [["1"], ["x", "y"]]}}},
    {"to": "x", "note": "n 34 678x", "tags": ["", "a", "item"]},
    {"to": "x", "note": 1.5, "kind": "a"},
    {"to": "x", "options": {}, "tags": [], "kind": 5},
    {"to": "x", "more": {"one": 1, "two": 2}},
]


@pytest.mark.parametrize("arguments", VALUES)
def test_what_a_template_writes_is_taken_and_read(arguments, takes):
    text = written(("trip", arguments))
    assert takes(text)
    whole = read("See: " + text)
    assert whole[0] == "See: "
    ((name, found),) = whole[1]
    assert name == "trip"
    expected = json.loads(json.dumps(arguments))
    if arguments.get("options"):
        expected["options"]["by"] = {"deep": [[1], ["x", "y"]]}  # of no type: read as what it is
    assert json.loads(found) == expected
    for cut in (1, 2, 3, 7, 16):
        assert read("See: " + text, cut=cut) == whole


def test_calls_of_an_answer_are_one_section(takes):
    one, two = written(("now", {})), written(("trip", VALUES[0]), ("now", {}))
    assert takes(one)
    assert takes(two)
    assert takes(one, parallel=False)
    assert takes("Let me see. " + two, required=False)
    assert takes("", required=False)
    assert not takes(two, parallel=False)
    assert not takes("Let me see. " + one)
    assert not takes(one + "and so on", required=False)
    assert [name for name, _ in read(two)[1]] == ["trip", "now"]


WRONG = [
    {"days": 3},
    {"to": "x", "days": "y"},
    {"to": "x", "other": "y"},
    {"to": "x", "stops": []},
    {"to": "x", "stops": [{"at": "a"}] * 4},
    {"to": "x", "stops": [{"to": "a"}]},
    {"to": "x", "stops": "a"},
    {"to": "x", "options": {"item": 1}},
    {"to": "x", "note": "long string"},
    {"to": "x", "kind": "b"},
    {"to": "x", "more": {"one": "y"}},
]


@pytest.mark.parametrize("arguments", WRONG)
def test_what_the_schema_forbids_is_not_taken(arguments, takes):
    assert not takes(written(("trip", arguments)))


def test_other_properties_where_a_schema_has_room(takes):
    text = written(("f", {"a": 1, "any": {"g": ["h"]}, "b": "x y", "c": [{"d": "e"}, "f"]}))
    assert takes(text, FREE)
    assert not takes(written(("f", {"a": "x"})), FREE)  # not as another one of any type, either
    ((_, found),) = read(text, FREE)[1]
    expected = {"a": 1, "any": {"g": ["h"]}, "b": "x y", "c": [{"d": "e"}, "f"]}
    assert json.loads(found) == expected


def test_what_has_no_form_is_an_error(tokenizer):
    for properties, says in (
        ({"a>b": {}}, "'a>b'"),
        ({"a": {"enum": [[1]]}}, "listed"),
        ({"a": {"type": "array", "prefixItems": [{}]}}, "prefixItems"),
        ({"a": {"type": "array", "minItems": 3, "maxItems": 2}}, "no list"),
    ):
        with pytest.raises(GrammarError, match=says):
            PlainFormat(MINIMAX_M3).call_grammar(
                *({"f": {"properties": properties}}, tokenizer, Start.CONTENT),
                required=True,
                parallel=True,
            )


def test_a_schema_that_refers_to_itself_is_held_to_its_first_levels(takes):
    deep = {"at": "a", "next": {"at": "b", "next": {"at": "c"}}}
    assert takes(written(("trip", {"to": "x", "stops": [deep]})), {"trip": TRIP})
    ((_, found),) = read(written(("trip", {"to": "x", "stops": [deep]})), {"trip": TRIP})[1]
    assert json.loads(found)["stops"] == [deep]


def test_the_beginning_of_an_answer_reads_as_the_beginning_of_what_it_says():
    text = "Well. " + written(("trip", VALUES[3]), ("now", {}), ("trip", VALUES[2]))
    content, calls = read(text)
    for end in range(len(text)):
        part, found = read(text[:end], cut=random.Random(end).randrange(1, 9))
        assert content.startswith(part.removesuffix(text[len(content) : end]))
        for (name, arguments), (wanted, whole) in zip(found, calls, strict=False):
            assert name == wanted
            assert whole.startswith(arguments)


def test_a_tag_that_is_only_mentioned_begins_no_call(tokenizer, takes):
    begin, call = MINIMAX_M3.begin, written(("now", {}))
    for mention in (f"The tag {begin} starts a call.", begin, f"{begin}\n\nand {begin}{begin} so "):
        is_text = isinstance(tokenizer.split_special(NS)[0], str)
        assert takes(mention + call, required=False) == is_text
        for cut in (1, 3, None):
            assert read(mention, cut=cut) == (mention, [])
            assert read(mention + call, cut=cut) == (mention, [("now", "{}")])


def test_odd_answers_are_read_as_far_as_they_make_sense():
    body = f"{NS}<to>a{NS}<b>c{NS}</to>stray{NS}<days>x{NS}</days>"
    ((_, found),) = read(f'{NS}<tool_call>{NS}<invoke name="trip">{body}{NS}</invoke>')[1]
    assert json.loads(found) == {"to": f"a{NS}<b>c", "days": "x"}
    nested = f"{NS}<any>" + f"{NS}<a>" * 70 + f"{NS}</a>" * 70 + f"{NS}</any>"
    text = f'{NS}<tool_call>\n{NS}<invoke name="f">{nested}{NS}</invoke>\n{NS}</tool_call>'
    assert read(text, FREE) == read(text, FREE, cut=1)


def test_long_values_take_time_in_proportion():
    def answer(n):
        stops = [{"at": "a" * 20}] * n
        text = written(("trip", {"to": "x" * 20 * n, "stops": stops}))
        return lambda: read(text, cut=4)

    assert grows_no_faster(answer(100), answer(1_000), 40)  # fair is 10
