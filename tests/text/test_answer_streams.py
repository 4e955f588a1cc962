"""An answer means the same in one piece, token by token and cut anywhere; so does a part of it."""

import itertools
import json
import random
import re

import pytest

import answer_texts
from growth import grows_no_faster
from lanewise.text.answers.atem import CALLS
from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.content_tags import COMMAND_RESPONSE, HUNYUAN_ANSWER, HUNYUAN_LABELLED
from lanewise.text.answers.families import ATEM, HARMONY, PlainFormat
from lanewise.text.answers.harmony import TOKENS
from lanewise.text.answers.json_calls import (
    APERTUS,
    COMMAND,
    GRANITE,
    HERMES,
    HUNYUAN,
    NEMOTRON,
    PHI,
)
from lanewise.text.answers.named_calls import MISTRAL_NAMED, MISTRAL_WITH_IDS
from lanewise.text.answers.python_calls import LFM2, OLMO
from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from lanewise.text.answers.tagged_calls import GLM, GLM_TIGHT, MINIMAX, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import (
    APERTUS_THINK,
    COMMAND_THINK,
    GEMMA_THINK,
    THINK,
    Start,
)
from lanewise.text.detokenizer import MARK, StreamDecoder
from topics import cases
from toy_tokenizer import toy_tokenizer

N_ANSWERS = cases(20, 200)
TAGGED = (QWEN3_CODER, GLM, GLM_TIGHT, SEED, MINIMAX)


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer((*TOKENS, "[TOOL_CALLS]", "[ARGS]"))


@pytest.fixture(scope="module")
def sections():
    """Some of their tags are control tokens, as in the families' tokenizers; the rest is text."""
    names = (*DEEPSEEK.tags()[0::4], DEEPSEEK_V31.arguments_tag, LFM2.begin, KIMI.arguments_tag)
    return toy_tokenizer(names)


def ids_of(tokenizer, parts):
    ids = []
    for part in parts:
        is_token = isinstance(part, answer_texts.Token)
        ids += tokenizer.encode(part, add_bos=False, parse_special=is_token)
    return ids


def pieces_of(tokenizer, form, ids):
    decoder = StreamDecoder(
        tokenizer, shown=form.tokens(tokenizer), marked=form.marks_tokens, continues=True
    )
    return [*map(decoder.push, ids), decoder.flush()]


def read(form, pieces, start, tools=answer_texts.TOOLS):
    """Reasoning, content and calls; what was streamed of the calls makes the same."""
    parser = form.parser(start, tools)
    reasoning = content = ""
    streamed = []
    for i, piece in enumerate(pieces):
        more, text = parser.push(piece, last=i == len(pieces) - 1)
        reasoning, content = reasoning + more, content + text
        for delta in parser.take_deltas():
            if delta["index"] == len(streamed):
                streamed.append({key: delta[key] for key in ("id", "type", "function")})
            else:
                assert delta["index"] == len(streamed) - 1
                streamed[-1]["function"]["arguments"] += delta["function"]["arguments"]
    assert streamed == parser.calls
    assert len({call["id"] for call in parser.calls}) == len(parser.calls)
    functions = [call["function"] for call in parser.calls]
    return reasoning, content, [(one["name"], one["arguments"]) for one in functions]


def check(tokenizer, form, ids, seed, start=Start.OPEN):
    """Read in all ways, which agree."""
    rng = random.Random(seed)
    pieces = pieces_of(tokenizer, form, ids)
    text = "".join(pieces)
    found = read(form, [text], start)
    assert read(form, pieces, start) == found
    for _ in range(3):
        cuts = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(seed % 40))})
        assert read(form, [text[a:b] for a, b in itertools.pairwise(cuts)] or [""], start) == found
    return found


def check_cut(tokenizer, form, ids, seed, whole):
    """A part of an answer has the beginning of what the whole has."""
    part = ids[: random.Random(seed).randrange(len(ids) + 1)]
    reasoning, content, calls = check(tokenizer, form, part, seed)
    assert whole[0].startswith(reasoning.rstrip("\N{REPLACEMENT CHARACTER}"))
    names = [name for name, _ in calls]
    assert [name for name, _ in whole[2]][: len(names)] == names
    for (_, arguments), (_, all_of_them) in zip(calls, whole[2], strict=False):
        assert all_of_them.startswith(arguments.rstrip("\N{REPLACEMENT CHARACTER}"))
    return content


@pytest.mark.parametrize("seed", range(N_ANSWERS))
def test_harmony(tokenizer, seed):
    answer = answer_texts.harmony(random.Random(seed))
    ids = ids_of(tokenizer, answer.parts)
    found = check(tokenizer, HARMONY, ids, seed)
    assert found[:2] == (answer.reasoning, answer.content)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    content = check_cut(tokenizer, HARMONY, ids, seed, found)
    assert answer.content.startswith(content.rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.parametrize("seed", range(N_ANSWERS))
def test_calls_between_tags(tokenizer, seed):
    rng = random.Random(seed)
    form = PlainFormat(rng.choice((QWEN3_CODER, QWEN3_CODER, *TAGGED)), THINK)
    answer = answer_texts.tagged(rng, form.calls)
    ids = ids_of(tokenizer, answer.parts)
    found = check(tokenizer, form, ids, seed)
    assert found[0] == answer.reasoning
    assert found[1].strip() == answer.content.strip()
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    check_cut(tokenizer, form, ids, seed, found)


@pytest.mark.parametrize(
    "form", [DEEPSEEK, DEEPSEEK_V31, KIMI, LFM2, OLMO], ids=lambda form: form.name
)
@pytest.mark.parametrize("seed", range(N_ANSWERS // 2))
def test_calls_in_sections_and_lists(sections, form, seed):
    rng = random.Random(seed)
    make = answer_texts.in_python if form in (LFM2, OLMO) else answer_texts.in_section
    answer = make(rng, form)
    ids = sections.encode("".join(answer.parts), add_bos=False, parse_special=True)
    plain = PlainFormat(form, THINK)
    found = check(sections, plain, ids, seed)
    assert found[:2] == ("", answer.content)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    check_cut(sections, plain, ids, seed, found)


WITH_OBJECTS = {
    "command": PlainFormat(COMMAND, COMMAND_THINK, content=COMMAND_RESPONSE),
    "hunyuan": PlainFormat(HUNYUAN, THINK, content=HUNYUAN_ANSWER),
    "hunyuan with a label": PlainFormat(HUNYUAN, THINK, content=HUNYUAN_LABELLED),
    "apertus": PlainFormat(APERTUS, APERTUS_THINK),
}
CONTROL = (
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|tools_prefix|>", "<|tools_suffix|>"),
    *("<|inner_prefix|>", "<|inner_suffix|>", "<think>", "</think>", "<answer>", "</answer>"),
)


@pytest.fixture(scope="module", params=[(), CONTROL], ids=["text", "tokens"])
def either(request):
    """Tags as text, and as control tokens."""
    return toy_tokenizer(request.param)


@pytest.mark.parametrize("name", WITH_OBJECTS)
@pytest.mark.parametrize("seed", range(N_ANSWERS // 2))
def test_calls_in_lists_of_objects(either, name, seed):
    form = WITH_OBJECTS[name]
    answer = answer_texts.with_objects(random.Random(seed), form.calls, form.thinking, form.content)
    ids = either.encode("".join(answer.parts), add_bos=False, parse_special=True)
    found = check(either, form, ids, seed)
    assert found[:2] == (answer.reasoning, answer.content)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    check_cut(either, form, ids, seed, found)


@pytest.mark.parametrize("seed", range(N_ANSWERS // 2))
def test_calls_in_braces(either, seed):
    answer = answer_texts.in_braces(random.Random(seed))
    form = PlainFormat(GEMMA, GEMMA_THINK)
    ids = either.encode("".join(answer.parts), add_bos=False, parse_special=True)
    found = check(either, form, ids, seed)
    assert found[:2] == (answer.reasoning, answer.content)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    check_cut(either, form, ids, seed, found)


# By hand: what a seed does not make.
CORNERS = [
    (HARMONY, "plain words", ("", "plain words", [])),
    (HARMONY, "", ("", "", [])),
    (HARMONY, "[c]analysis", ("", "", [])),
    (HARMONY, "[c]analysis[m]thinking", ("thinking", "", [])),
    (HARMONY, "[c]final[m]a[e]junk[s]assistant[c]final[m]b", ("", "a\nb", [])),
    (HARMONY, "[c]analysis[m]a[s]assistant[c]final[m]b", ("a", "b", [])),
    (HARMONY, "[c]analysis[m]a[c]final[m]b[r]", ("a", "b", [])),
    (HARMONY, "[c]final [k]json[m]{}", ("", "{}", [])),
    (HARMONY, "[c]analysis to=python code[m]1+1[a]", ("1+1", "", [])),
    (HARMONY, "[c]commentary to=browser.open[m]x", ("x", "", [])),
    (HARMONY, "[c]commentary to=functions.f [k]json[m][a]", ("", "", [("f", "")])),
    (HARMONY, '[c]commentary to=functions.f[m]{"a": "[', ("", "", [("f", '{"a": "[')])),
    (
        HARMONY,
        "[c]commentary to=functions.f[m]{}[a][s]assistant to=functions.g[c]commentary[m]{}[a]",
        ("", "", [("f", "{}"), ("g", "{}")]),
    ),
    (QWEN3_CODER, "a <tool_call> b", ("", "a <tool_call> b", [])),
    (QWEN3_CODER, "a <tool_call>\n<func", ("", "a <tool_call>\n<func", [])),
    (QWEN3_CODER, "a <tool_cal", ("", "a <tool_cal", [])),
    (QWEN3_CODER, "<tool_call>\n<function=look>", ("", "", [("look", "{")])),
    (
        QWEN3_CODER,
        "<tool_call>\n<function=look>\n</function>\n</tool_call>\nDone.",
        ("", "Done.", [("look", "{}")]),
    ),
    (
        QWEN3_CODER,
        "<tool_call><function=look><parameter=text>one line</parameter></function></tool_call>"
        "<tool_call><function=now></function>",
        ("", "", [("look", '{"text": "one line"}'), ("now", "{}")]),
    ),
    (
        QWEN3_CODER,
        "<tool_call>\n<function=look>\n<parameter=text>\n a\n\n</parameter>\n"
        "<parameter=deep>\nTrue",
        ("", "", [("look", '{"text": " a\\n", "deep": ')]),
    ),
    (
        QWEN3_CODER,
        "<tool_call>\n<function=look>\n<parameter=count>\n5.0\n</parameter>\n<parameter=size>\n"
        "NaN\n</parameter>\n<parameter=deep>\nFalse\n</parameter>\n</tool_call>",
        ("", "", [("look", '{"count": 5, "size": "NaN", "deep": false}')]),
    ),
    (
        QWEN3_CODER,
        "<tool_call>\n<function=look>\n<parameter=new>\n[1]\n</parameter>\n<parameter=any>\na",
        ("", "", [("look", '{"new": [1], "any": ')]),
    ),
    (GLM, "<tool_call>functions.now\n</tool_call>", ("", "", [("functions.now", "{}")])),
    (GLM, "<tool_call>now\n</tool_call>", ("", "<tool_call>now\n</tool_call>", [])),
    (GLM, "<tool_call>", ("", "<tool_call>", [])),
    (GLM, "<tool_call></tool_call>", ("", "<tool_call></tool_call>", [])),
    (
        GLM,
        "<tool_call>look\n<arg_key>text</arg_key>\n<arg_value>a\nb </arg_value>\n</tool_call>",
        ("", "", [("look", '{"text": "a\\nb "}')]),
    ),
    (
        MISTRAL_NAMED,
        'So[TOOL_CALLS]f[ARGS]{"a": "}"}[TOOL_CALLS]g[ARGS]{}',
        ("", "So", [("f", '{"a": "}"}'), ("g", "{}")]),
    ),
    (MISTRAL_NAMED, 'So[TOOL_CALLS]f[ARGS]{"a": ', ("", "So", [("f", '{"a": ')])),
    (MISTRAL_WITH_IDS, "[TOOL_CALLS]f[CALL_ID]aB3456789[ARGS]{}", ("", "", [("f", "{}")])),
    (MISTRAL_WITH_IDS, "[TOOL_CALLS]f[ARGS]{}", ("", "", [("f", "{}")])),
    (
        PHI,
        'So <|tool_call|>[{"name": "now", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]'
        "<|/tool_call|>",
        ("", "So ", [("now", "{}"), ("f", '{"a": 1}')]),
    ),
    (GRANITE, '<|tool_call|>[{"name": "now", "arguments": {}}]', ("", "", [("now", "{}")])),
    (
        NEMOTRON,
        'So <TOOLCALL>[{"name": "now", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]'
        "</TOOLCALL>",
        ("", "So ", [("now", "{}"), ("f", '{"a": 1}')]),
    ),
    (DEEPSEEK_V31, f"a{DEEPSEEK.begin}b", ("", "a", [])),
    (
        DEEPSEEK,
        answer_texts.section(DEEPSEEK, [("f", {"a": "``` }"}), ("g", {})]) + "\nDone.",
        ("", "Done.", [("f", '{"a": "``` }"}'), ("g", "{}")]),
    ),
    (
        DEEPSEEK,  # as it writes when it forgets the line breaks
        answer_texts.section(DEEPSEEK, [("f", {})]).replace("\n", ""),
        ("", "", [("f", "{}")]),
    ),
    (
        KIMI,  # an id that is given twice is the first one's
        answer_texts.section(KIMI, [("f", {}), ("f", {"a": 1})]).replace("f:1", "f:0"),
        ("", "", [("f", "{}"), ("f", '{"a": 1}')]),
    ),
    (KIMI, answer_texts.section(KIMI, [("f", {})])[:-30], ("", "", [("f", "{}")])),
    (LFM2, f"So {LFM2.begin}[f(){LFM2.end} then", ("", "So then", [("f", "{}")])),
    (LFM2, f"{LFM2.begin}f(a=1){LFM2.end}", ("", "", [("f", '{"a": 1}')])),
    (
        LFM2,
        f"{LFM2.begin}[f(1, a='x\\'y', b=oops)]",
        ("", "", [("f", '{"a": "x\'y", "b": "oops"}')]),
    ),
    (
        LFM2,
        f"{LFM2.begin}[f(a=[1, (2, None)], b={{'k': True}}",
        ("", "", [("f", '{"a": [1, [2, null]], "b": ')]),
    ),
    (
        LFM2,
        f"{LFM2.begin}[look(count=1e999, deep=true)]",
        ("", "", [("look", '{"count": "1e999", "deep": true}')]),
    ),
    (OLMO, f"So {OLMO.begin}[f(a=true)]{OLMO.end} then", ("", "So  then", [("f", '{"a": true}')])),
    (OLMO, f"{OLMO.begin}\nf()\n\ng(a=[1,\n2])", ("", "", [("f", "{}"), ("g", '{"a": [1, 2]}')])),
    (GEMMA, f"a {GEMMA.begin} b", ("", f"a {GEMMA.begin} b", [])),
    (GEMMA, f"{GEMMA.begin}call:f", ("", "", [])),
    (
        GEMMA,
        f"So{GEMMA.begin}call:f{{a: None , b:[ oops,{GEMMA.quote}x{GEMMA.quote}],c:}}{GEMMA.end}.",
        ("", "So.", [("f", '{"a": null, "b": ["oops", "x"], "c": }')]),
    ),
    (GEMMA, f'{GEMMA.begin}call:f{{a:{GEMMA.quote}"\\', ("", "", [("f", '{"a": "\\"\\\\')])),
    (HERMES, "\n<think>\n a b \n</think>\n\nc <think>", ("a b", "c <think>", [])),
    (HERMES, "<think>a", ("a", "", [])),
    (HERMES, "<thin", ("", "<thin", [])),
    (HERMES, " <think></think>", ("", "", [])),
    (
        HERMES,
        "<think>\n<tool_call>\n</think>\n"
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ("<tool_call>", "", [("now", "{}")]),
    ),
]
SHORT = {"c": "channel", "m": "message", "e": "end", "s": "start", "r": "return", "a": "call"}
SHORT["k"] = "constrain"


@pytest.mark.parametrize(("calls", "text", "wanted"), CORNERS)
def test_corners(tokenizer, calls, text, wanted):
    if calls is HARMONY:
        found = re.split(r"\[([a-z])\]", text)
        found[1::2] = (answer_texts.Token(f"<|{SHORT[name]}|>") for name in found[1::2])
        form, ids = HARMONY, ids_of(tokenizer, found)
    else:
        form, ids = PlainFormat(calls, THINK), ids_of(tokenizer, [text])
    for seed in range(10):
        assert check(tokenizer, form, ids, seed) == wanted


def test_a_message_that_is_continued_goes_on_in_its_channel(tokenizer):
    parts = [" and more", answer_texts.END, answer_texts.START, "assistant"]
    parts += [answer_texts.CHANNEL, "analysis", answer_texts.MESSAGE, "hm"]
    found = check(tokenizer, HARMONY, ids_of(tokenizer, parts), 3, Start.CONTENT)
    assert found == ("hm", " and more", [])


def test_reasoning_that_the_prompt_has_begun(tokenizer):
    form = PlainFormat(HERMES, THINK)
    ids = ids_of(tokenizer, ["so\n</think>\n\nYes"])
    assert check(tokenizer, form, ids, 3, Start.THOUGHT) == ("so", "Yes", [])
    assert check(tokenizer, form, ids, 3, Start.CONTENT) == ("", "so\n</think>\n\nYes", [])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("助手：好的。", "好的。"),
        ("\n助手： 好的，助手：", "好的，助手："),
        ("<think>\n\n</think>\n<answer>\n助手：Yes.\n</answer>", "Yes."),
        ("<answer>助手：</answer>", ""),
        ("助手：助手：好", "助手：好"),
        ("好的，助手：好", "好的，助手：好"),
        ("助手好", "助手好"),
        ("<answer>助手</answer>", "助手"),
        (" 助手", " 助手"),
    ],
)
def test_the_label_of_an_answer_is_no_content(tokenizer, text, content):
    ids = ids_of(tokenizer, [text])
    form = PlainFormat(HUNYUAN, THINK, content=HUNYUAN_LABELLED)
    others = PlainFormat(HUNYUAN, THINK, content=HUNYUAN_ANSWER)
    for seed in range(10):
        assert check(tokenizer, form, ids, seed) == ("", content, [])
        assert ("助手：" in text) == ("助手：" in check(tokenizer, others, ids, seed)[1])
    assert check(tokenizer, form, ids, 3, Start.CONTENT)[1].endswith(content)


def test_a_message_that_is_continued_has_its_label_already(tokenizer):
    form = PlainFormat(HUNYUAN, THINK, content=HUNYUAN_LABELLED)
    ids = ids_of(tokenizer, ["助手：<answer>好</answer>\n"])
    assert check(tokenizer, form, ids, 3, Start.MIDDLE) == ("", "助手：<answer>好", [])


@pytest.mark.parametrize(
    ("calls", "begin"),
    [
        (HARMONY, ""),
        (HARMONY, f"{MARK}<|channel|>analysis"),
        (HARMONY, f"{MARK}<|channel|>commentary to=functions.f{MARK}<|message|>"),
        (ATEM, f" to=look{MARK}<|message|>"),
        (ATEM, f' to=look{MARK}<|message|>{CALLS.begin}\n<atem:invoke name="look">'),
        (QWEN3_CODER, "<tool_call>\n<function=look>\n<parameter=text>\n"),
        (QWEN3_CODER, "<tool_call>\n<function=look>\n<parameter=any>\n"),
        (QWEN3_CODER, "<tool_call>\n<function=look>\n"),
        (GLM, "<tool_call>"),
        (MISTRAL_NAMED, "[TOOL_CALLS]"),
        (HERMES, "<think>"),
        (DEEPSEEK, DEEPSEEK.begin),
        (KIMI, KIMI.begin + KIMI.call_begin),
        (LFM2, LFM2.begin),
        (LFM2, f"{LFM2.begin}[f(a="),
        (LFM2, f"{LFM2.begin}[f(a='"),
        (OLMO, f"{OLMO.begin}f()\n"),
        (GEMMA, f"{GEMMA.begin}call:f{{a:"),
        (GEMMA, f"{GEMMA.begin}call:f{{a:{GEMMA.quote}"),
        (COMMAND, f"{COMMAND.begin}{{"),
    ],
)
@pytest.mark.parametrize("piece", ["  \n ", "<a<<"])
def test_a_piece_costs_the_same_however_much_came_before(calls, begin, piece):
    form = calls if calls in (HARMONY, ATEM) else PlainFormat(calls, THINK)

    def push(count):
        parser = form.parser(Start.OPEN, answer_texts.TOOLS)
        parser.push(begin)
        for _ in range(count):
            parser.push(piece)

    assert grows_no_faster(lambda: push(300), lambda: push(3_000), 40)  # fair is 10
