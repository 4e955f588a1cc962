"""Tool calls in the formats of the model families: what may be written, and how it is read."""

import itertools
import json
import random

import pytest

from growth import grows_no_faster
from lanewise.text.answers.calls import argument_schema
from lanewise.text.answers.explained import explained
from lanewise.text.answers.families import PlainFormat
from lanewise.text.answers.json_calls import GENERIC, HERMES, LLAMA, MISTRAL
from lanewise.text.answers.thinking import Start
from lanewise.text.grammar import GrammarCompiler, GrammarError
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

TOOLS = {
    "look": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    "now": None,
}
LOOK = '{"name": "look", "KEY": {"at": "a } \\" b"}}'
NOW = '{"name": "now", "KEY": {}}'


def written(form, *calls: str) -> str:
    texts = [call.replace("KEY", form.arguments) + form.after_call for call in calls]
    return form.begin + (form.between or "").join(texts) + form.end


def read(form, pieces: list[str]):
    parser, content, deltas = form.parser(TOOLS), "", []
    for i, piece in enumerate(pieces):
        content += parser.push(piece, last=i == len(pieces) - 1)
        deltas += parser.take_deltas()
    return content, parser.calls, deltas


FORMS = pytest.mark.parametrize("form", [HERMES, MISTRAL, LLAMA], ids=lambda form: form.name)


@FORMS
def test_calls_are_read_however_their_text_is_cut(form):
    calls = [LOOK, NOW] if form.between else [LOOK]
    before = "Let me see < it [T." if form.begin else ""
    text = before + written(form, *calls)
    for seed in range(50):
        rng = random.Random(seed)
        cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(seed))})
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        content, found, deltas = read(form, pieces)
        assert content == before
        functions = [call["function"] for call in found]
        assert [function["name"] for function in functions] == ["look", "now"][: len(calls)]
        assert json.loads(functions[0]["arguments"]) == {"at": 'a } " b'}
        joined = ["" for _ in found]
        for delta in deltas:
            joined[delta["index"]] += delta["function"]["arguments"]
        assert joined == [function["arguments"] for function in functions]
        started = [delta for delta in deltas if "id" in delta]
        assert [delta["id"] for delta in started] == [call["id"] for call in found]
        assert len({call["id"] for call in found}) == len(found)


@FORMS
def test_text_without_calls_is_content(form):
    for text in ("", "no {call} <tool_cal", "[TOOL_CALLS", "<", "a <|python_tag|>"):
        assert read(form, list(text) or [""]) == (text, [], [])
    assert read(LLAMA, ["<|python", "_tag|>", written(LLAMA, NOW)])[1]


@FORMS
def test_grammars_take_the_calls_asked_for_and_nothing_else(form):
    tokenizer = toy_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))

    def takes(text, *, tools=TOOLS, **how):
        how = {"parallel": True, "required": True, **how}
        source = PlainFormat(form).call_grammar(tools, tokenizer, Start.CONTENT, **how)
        return matches(compiler.compile(source), tokenizer, text)

    one, two = written(form, LOOK), written(form, LOOK, NOW)
    assert takes(one)
    assert takes(one, required=False)
    assert takes(two) == takes(two, required=False) == (form.between is not None)
    assert not takes(two, parallel=False)
    assert not takes("Hello")
    assert takes("Hello", required=False)
    assert takes("Hello " + one, required=False)
    assert not takes("Hello " + one)
    assert not takes(one + "!", required=False)
    assert not takes(one, tools={"now": None})
    for wrong in ('"at"', '"other"', "1"):
        assert not takes(one.replace('"at": "a', f"{wrong}: 1, "), required=False)


def test_a_template_without_tools_gets_them_as_text():
    call = {"type": "function", "function": {"name": "now", "arguments": {"x": 1}}}
    conversation = [
        {"role": "user", "content": "What time?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
    ]
    asked, called, told = explained(
        conversation, [{"type": "function", "function": {"name": "now"}}]
    )
    assert asked["content"].endswith("What time?")
    assert (
        '<tools>\n{"type": "function", "function": {"name": "now"}}\n</tools>' in asked["content"]
    )
    assert called["content"] == written(GENERIC, '{"name": "now", "KEY": {"x": 1}}')
    assert "tool_calls" not in called
    assert told == {"role": "user", "content": "<tool_response>\n12:00\n</tool_response>"}
    assert conversation[0]["content"] == "What time?"


def test_arguments_are_an_object_of_the_named_properties():
    assert argument_schema(None)["additionalProperties"] is False
    assert argument_schema({"properties": {}})["additionalProperties"] is False
    assert "additionalProperties" not in argument_schema({"$ref": "#/$defs/a"})
    assert argument_schema({"properties": {}, "additionalProperties": True}) == {
        "type": "object",
        "properties": {},
        "additionalProperties": True,
    }
    with pytest.raises(GrammarError, match="'array'"):
        argument_schema({"type": "array"})


@pytest.mark.parametrize("begin", ["", '{"name": "'])
@pytest.mark.parametrize("piece", ["    ", "aaaa", "\\n\\n"])
def test_a_piece_costs_the_same_however_much_came_before(begin, piece):
    def push(count: int) -> None:
        parser = HERMES.parser(TOOLS)
        parser.push(HERMES.begin + begin)
        for _ in range(count):
            parser.push(piece)

    assert grows_no_faster(lambda: push(500), lambda: push(5_000), 40)  # fair is 10; it was 100
