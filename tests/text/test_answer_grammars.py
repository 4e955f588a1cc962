"""What answers may be: the grammars of the families' forms take what the families write."""

import json
import random
from functools import partial

import pytest

import answer_texts
from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.calls import argument_schema
from lanewise.text.answers.content_tags import COMMAND_RESPONSE, HUNYUAN_ANSWER
from lanewise.text.answers.families import HARMONY, PlainFormat
from lanewise.text.answers.harmony import TOKENS
from lanewise.text.answers.json_calls import APERTUS, COMMAND, HERMES, HUNYUAN
from lanewise.text.answers.named_calls import MISTRAL_NAMED, MISTRAL_WITH_IDS
from lanewise.text.answers.python_calls import LFM2, OLMO
from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from lanewise.text.answers.tagged_calls import GLM, GLM_TIGHT, MINIMAX, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import THINK, Start
from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from toy_grammars import matches
from toy_tokenizer import toy_tokenizer

TAGGED = pytest.mark.parametrize(
    "form", [QWEN3_CODER, GLM, GLM_TIGHT, SEED, MINIMAX], ids=lambda form: form.name
)
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"enum": ["C", "F"]},
        "note": {"type": "string", "minLength": 1, "maxLength": 9},
    },
    "required": ["city", "days"],
}
TOOLS = {"weather": CITY, "now": None}
BODY = GrammarSource.from_regex("[0-9]{3}")


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer((*TOKENS, "[TOOL_CALLS]", "[ARGS]"))


@pytest.fixture(scope="module")
def takes(tokenizer):
    return taker(tokenizer)


def taker(tokenizer):
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size + len(tokenizer.unused_ids))

    def takes(source, text, *, parse_special=True):
        ids = tokenizer.encode(text, add_bos=False, parse_special=parse_special)
        return matches(compiler.compile(source), tokenizer, ids)

    return takes


def grammar(form, tokenizer, start=Start.CONTENT, tools=TOOLS, **how):
    how = {"required": True, "parallel": True, **how}
    return form.call_grammar(tools, tokenizer, start, **how)


def braced(_form, calls):
    return "".join(answer_texts.braced(*call) for call in calls)


in_json = partial(json.dumps, ensure_ascii=False)
WRITERS = {
    **dict.fromkeys((DEEPSEEK, DEEPSEEK_V31, KIMI), answer_texts.section),
    **dict.fromkeys((LFM2, OLMO), partial(answer_texts.listed, shown=in_json)),
    **dict.fromkeys((HUNYUAN, APERTUS, COMMAND), answer_texts.objects),
    GEMMA: braced,
}


@pytest.fixture(scope="module", params=["text", "tokens"])
def either(request, takes):
    """A tokenizer in which the tags of Gemma, Command and Apertus are text or control tokens."""
    names = (*GEMMA.tags(), "<|START_ACTION|>", "<|END_ACTION|>", "<|tools_prefix|>")
    names += ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    made = toy_tokenizer(names if request.param == "tokens" else ())
    return made, taker(made)


@pytest.mark.parametrize("form", WRITERS, ids=lambda form: form.name)
def test_calls_in_sections_and_lists(form, either):
    tokenizer, takes = either
    calls, write = PlainFormat(form), WRITERS[form]
    bonn = {"city": "Bonn\n<b>", "days": 3}
    one, two = (write(form, [("weather", bonn), ("now", {})][:n]) for n in (1, 2))
    required, auto = (grammar(calls, tokenizer, required=required) for required in (True, False))
    single = grammar(calls, tokenizer, parallel=False)
    assert takes(required, one)
    assert takes(required, two)
    assert takes(auto, "Let me see. " + two)
    assert takes(auto, "")
    assert takes(single, one)
    assert not takes(single, two)
    assert not takes(required, "Let me see. " + one)
    assert not takes(auto, one + "and so on")
    assert takes(required, write(form, [("weather", {**bonn, "unit": "F"})]))
    assert takes(required, write(form, [("weather", {**bonn, "note": "n" * 9})]))
    changes = ({"days": "x"}, {"unit": "K"}, {"x": 1}, {"note": ""}, {"note": "1234567890"})
    for wrong in ({"city": "Bonn"}, *({**bonn, **change} for change in changes)):
        assert not takes(auto, write(form, [("weather", wrong)])), wrong


def test_words_of_python_in_calls(tokenizer, takes):
    properties = {"a": {"type": ["boolean", "null"]}, "b": {"enum": [1, True, "x"]}}
    tools = {"f": {"type": "object", "properties": properties}, "g": {"type": "object"}}
    source = grammar(PlainFormat(LFM2), tokenizer, tools=tools)
    for text in (
        "f()",
        "f(a=None)",
        "f(a=True, b=True)",
        "f(b=1, a=None)",
        'f(b="x")',
        "f(b=1), g()",
    ):
        assert takes(source, f"{LFM2.begin}[{text}]{LFM2.end}"), text
    for text in ("f(a=1)", "f(b=1, b=1)", "f(b=2)", "f(a=null)", "f(", "g(x=1)"):
        assert not takes(source, f"{LFM2.begin}[{text}]{LFM2.end}"), text


def test_words_of_json_too_in_calls_of_olmo(tokenizer, takes):
    tools = {"f": {"properties": {"a": {"type": ["boolean", "null"]}, "b": {"enum": [1, True]}}}}
    source = grammar(PlainFormat(OLMO), tokenizer, tools=tools)
    for text in ("f()", "f(a=None)", "f(a=null)", "f(a=True, b=true)", "f(a=false)\nf(b=1)"):
        assert takes(source, f"{OLMO.begin}{text}{OLMO.end}"), text
    for text in ("f(a=1)", "f(b=2)", "f(), f()", "[f()]"):
        assert not takes(source, f"{OLMO.begin}{text}{OLMO.end}"), text


DEEP = {
    "type": "object",
    "properties": {
        "b": {"type": "array", "items": {"$ref": "#/$defs/point"}, "minItems": 1, "maxItems": 2},
        "A": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "c": {"type": "object", "additionalProperties": {"type": "integer"}},
        "d": {"enum": ["x", "", 1, [True], {"k": None}]},
        "e": {},
    },
    "$defs": {"point": {"properties": {"x": {"type": "number"}}, "required": ["x"]}},
}


def test_values_in_braces(either):
    tokenizer, takes = either
    source = grammar(PlainFormat(GEMMA), tokenizer, tools={"f": DEEP})
    values = [
        *({"b": value} for value in ([{"x": 1.5}], [{"x": 1}, {"x": 2, "y": ["a", {}]}])),
        *({"A": "a{,}"}, {"A": 7}, {"c": {}}, {"c": {"one": 1, "two": 2}}),
        *({"d": one} for one in ("x", "", 1, [True], {"k": None})),
        *({"e": one} for one in ("", None, [], [1, ["a\n"]], {"k": {"l": "m"}})),
        {"A": 1, "b": [{"x": 0}], "e": False},
    ]
    for one in values:
        assert takes(source, answer_texts.braced("f", one)), one
    wrong = [
        *({"b": value} for value in ([], [{}], [{"x": "1"}], [{"x": 1}] * 3)),
        *({"A": 1.5}, {"A": None}, {"c": {"one": "1"}}, {"d": "y"}, {"other": 1}),
    ]
    for one in wrong:
        assert not takes(source, answer_texts.braced("f", one)), one
    assert not takes(source, f"{GEMMA.begin}call:f{{c:{{}},b:[{{x:1}}]}}{GEMMA.end}")  # not sorted
    with pytest.raises(GrammarError, match="'a:b'"):
        grammar(PlainFormat(GEMMA), tokenizer, tools={"f": {"properties": {"a:b": {}}}})


def test_content_may_stand_between_tags(either):
    tokenizer, takes = either
    call = answer_texts.objects(COMMAND, [("now", {})])
    form = PlainFormat(COMMAND, content=COMMAND_RESPONSE)
    auto = grammar(form, tokenizer, required=False)
    body = form.body_grammar(BODY, tokenizer, Start.CONTENT)
    both = grammar(form, tokenizer, required=False, body=BODY)
    for text in ("Hi.", "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", "<|START_RESPONSE|>Hi.", call):
        assert takes(auto, text), text
    for text in ("123", "<|START_RESPONSE|>123<|END_RESPONSE|>"):
        assert takes(body, text), text
        assert takes(both, text), text
    for text in ("12", "<|START_RESPONSE|>12<|END_RESPONSE|>", "<|END_RESPONSE|>123"):
        assert not takes(body, text), text
    assert takes(both, call)
    assert not takes(grammar(form, tokenizer), "<|START_RESPONSE|>Hi.<|END_RESPONSE|>")
    answer = PlainFormat(HUNYUAN, THINK, content=HUNYUAN_ANSWER)
    body = answer.body_grammar(BODY, tokenizer, Start.OPEN)
    assert takes(body, "<think>\nso\n</think>\n<answer>\n123\n</answer>")
    assert takes(body, "123")


@TAGGED
def test_calls_between_tags(form, tokenizer, takes):
    calls = PlainFormat(form)
    bonn = {"city": "Bonn\n<b>", "days": 3}
    one = answer_texts.written(form, "weather", bonn)
    two = one + "\n" + answer_texts.written(form, "now", {})
    required, auto = (grammar(calls, tokenizer, required=required) for required in (True, False))
    single = grammar(calls, tokenizer, parallel=False)
    assert takes(required, one)
    assert takes(required, two)
    assert takes(auto, "Let me see. " + two)
    assert takes(auto, "No <tool_cal")
    assert takes(auto, "")
    assert takes(single, one)
    assert not takes(single, two)
    assert not takes(required, "Let me see. " + one)
    assert not takes(auto, one + "and so on")
    assert takes(required, answer_texts.written(form, "weather", {**bonn, "unit": "F"}))
    for length in (1, 9):
        assert takes(
            required, answer_texts.written(form, "weather", {**bonn, "note": "\n" * length})
        )
    changes = ({"days": "x"}, {"unit": "K"}, {"x": 1}, {"note": ""}, {"note": "1234567890"})
    for wrong in ({"city": "Bonn"}, *({**bonn, **change} for change in changes)):
        assert not takes(auto, answer_texts.written(form, "weather", wrong)), wrong


@pytest.mark.parametrize(
    "form", [HERMES, QWEN3_CODER, GLM, GLM_TIGHT, SEED, MINIMAX], ids=lambda form: form.name
)
def test_a_tag_that_is_only_mentioned_begins_no_call(form, tokenizer, takes):
    begin = form.begin.rstrip()
    if form is HERMES:
        call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    else:
        call = answer_texts.written(form, "now", {})
    source = grammar(PlainFormat(form), tokenizer, required=False)
    thinking = PlainFormat(form, THINK)
    thought = grammar(thinking, tokenizer, Start.OPEN, required=False)
    mentions = (
        f"The tag {begin} starts a call.",
        f"{begin}",
        f"{begin} ",
        f"{begin}\n\nand {begin}{begin} nobody\n",
    )
    for mention in mentions:
        for text, n_calls in ((mention, 0), (mention + call, 1), (mention + "so " + call, 1)):
            assert takes(source, text), text
            assert takes(thought, text), text
            for cuts in (1, 3, len(text)):
                parser = PlainFormat(form).parser(Start.CONTENT, TOOLS)
                pieces = [text[i : i + cuts] for i in range(0, len(text), cuts)]
                content = "".join(parser.push(piece)[1] for piece in pieces)
                content += parser.push("", last=True)[1]
                said = text[: len(text) - n_calls * len(call)]
                assert (content, len(parser.calls)) == (said, n_calls)
    assert not takes(source, f"The {call} and more")
    assert not takes(source, mentions[0] + call[:-4])


@TAGGED
def test_other_properties_where_a_schema_has_room(form, tokenizer, takes):
    tools = {"f": {"properties": {"a": {"type": "integer"}}, "additionalProperties": True}}
    source = grammar(PlainFormat(form), tokenizer, tools=tools)
    assert takes(source, answer_texts.written(form, "f", {"a": 1, "b": "x y", "c": [1]}))
    with pytest.raises(GrammarError, match="'a>b'"):
        grammar(PlainFormat(form), tokenizer, tools={"f": {"properties": {"a>b": {}}}})


@pytest.mark.parametrize("seed", range(40))
def test_what_is_written_is_taken(tokenizer, takes, seed):
    """Properties in the order of the schema, as the grammar wants them."""
    rng = random.Random(seed)
    form = rng.choice((QWEN3_CODER, GLM, GLM_TIGHT, SEED))
    name, arguments = answer_texts.call(rng)
    order = list(argument_schema(answer_texts.TOOLS[name])["properties"])
    arguments = {key: arguments[key] for key in order if key in arguments}
    source = grammar(PlainFormat(form), tokenizer, tools=answer_texts.TOOLS)
    text = answer_texts.written(form, name, arguments)
    assert takes(source, text, parse_special=False), text


def test_calls_of_newer_mistral_models(tokenizer, takes):
    call = '[TOOL_CALLS]weather[ARGS]{"city": "Bonn", "days": 3}'
    for form in map(PlainFormat, (MISTRAL_NAMED, MISTRAL_WITH_IDS)):
        assert takes(grammar(form, tokenizer), call + "[TOOL_CALLS]now[ARGS]{}")
        assert not takes(grammar(form, tokenizer, parallel=False), call + call)
        assert takes(grammar(form, tokenizer, required=False), "See: " + call)
        assert not takes(grammar(form, tokenizer), "[TOOL_CALLS]weather[ARGS]{}")
    marked = call.replace("weather", "weather[CALL_ID]aB3456789")
    assert takes(grammar(PlainFormat(MISTRAL_WITH_IDS), tokenizer), marked)
    assert not takes(grammar(PlainFormat(MISTRAL_NAMED), tokenizer), marked)


ANALYSIS = "<|channel|>analysis<|message|>Hm {.<|end|><|start|>assistant"
CALL = (
    '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "", "days": 3}'
)
FINAL = "<|channel|>final<|message|>It is hot."


def test_harmony(tokenizer, takes):
    auto = grammar(HARMONY, tokenizer, Start.OPEN, required=False)
    required = grammar(HARMONY, tokenizer, Start.OPEN)
    recipient_first = CALL.replace(" to=functions.weather", "")
    recipient_first = " to=functions.weather" + recipient_first
    for before in ("", ANALYSIS, ANALYSIS + ANALYSIS.replace("analysis", "commentary")):
        for call in (CALL, recipient_first, CALL.replace(" <|constrain|>json", "")):
            assert takes(required, before + call)
            assert takes(auto, before + call)
        assert takes(auto, before + FINAL)
        assert not takes(required, before + FINAL)
    for wrong in (
        "Hello",
        CALL.replace("3", '"x"'),
        CALL.replace("weather", "other"),
        CALL + FINAL,
    ):
        assert not takes(auto, wrong)
    going_on = grammar(HARMONY, tokenizer, Start.CONTENT, required=False)
    assert takes(going_on, " and so on")
    assert takes(going_on, "<|end|><|start|>assistant" + CALL)


def test_a_form_of_content_holds_after_reasoning(tokenizer, takes):
    source = HARMONY.body_grammar(BODY, tokenizer, Start.OPEN)
    assert takes(source, "<|channel|>final<|message|>123")
    assert takes(source, ANALYSIS + "<|channel|>final <|constrain|>json<|message|>123")
    assert not takes(source, "123")
    assert not takes(source, "<|channel|>final<|message|>12")
    assert HARMONY.body_grammar(BODY, tokenizer, Start.CONTENT) is BODY
    form = PlainFormat(HERMES, THINK)
    maybe = form.body_grammar(BODY, tokenizer, Start.OPEN)
    begun = form.body_grammar(BODY, tokenizer, Start.THOUGHT)
    assert takes(maybe, "123")
    assert takes(maybe, "<think>\n1234\n</think>\n\n123")
    assert takes(begun, "so\n</think>\n\n123")
    assert not takes(begun, "123")
    assert not takes(maybe, "<think>\n1\n</think>\n\n12")
    assert form.body_grammar(BODY, tokenizer, Start.CONTENT) is BODY
    assert PlainFormat(HERMES).body_grammar(BODY, tokenizer, Start.CONTENT) is BODY


@pytest.mark.parametrize("calls", [HERMES, QWEN3_CODER, MISTRAL_NAMED], ids=lambda form: form.name)
def test_what_looks_like_a_call_in_reasoning_is_none(calls, tokenizer, takes):
    form = PlainFormat(calls, THINK)
    call = {
        HERMES: '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        QWEN3_CODER: answer_texts.written(QWEN3_CODER, "now", {}),
        MISTRAL_NAMED: "[TOOL_CALLS]now[ARGS]{}",
    }[calls]
    mention = "" if calls is MISTRAL_NAMED else "I could write <tool_call> now."
    thought = f"<think>\n{mention}\n</think>\n\n"
    for required in (True, False):
        maybe = grammar(form, tokenizer, Start.OPEN, required=required)
        begun = grammar(form, tokenizer, Start.THOUGHT, required=required)
        assert takes(maybe, call)
        assert takes(maybe, thought + call)
        assert takes(begun, thought.removeprefix("<think>") + call)
        assert not takes(maybe, thought) or not required
        for text in ("Yes.", thought + "Yes.", thought + "Yes. " + call, "Yes. " + call):
            assert takes(maybe, text) == (not required), text
