"""Muse's messages to recipients: read whole and in pieces, and what grammars take of them."""

import json
import random

import pytest
from test_answer_grammars import BODY, grammar, taker
from test_answer_streams import N_ANSWERS, check, check_cut, ids_of

import answer_texts
from lanewise.text.answers.atem import CALLS, TOKENS
from lanewise.text.answers.families import (
    ATEM,
    answer_format,
    effort_variables,
    uses_effort,
)
from lanewise.text.answers.thinking import Start
from lanewise.text.backend import END_OF_TURN
from lanewise.text.chat_template import ChatTemplate
from lanewise.text.detokenizer import MARK
from toy_tokenizer import toy_tokenizer

START, MESSAGE, END, LAST = map(answer_texts.Token, TOKENS)
AGAIN = [END, START, "assistant"]
SAYS = "<|start|>assistant<|message|><|eom|><atem:function_calls>{{ reasoning_strength }}"


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer(TOKENS)


@pytest.fixture(scope="module")
def takes(tokenizer):
    return taker(tokenizer)


def answer_of(rng):
    """Messages to self and user, then calls or a last message."""
    answer, said = answer_texts.Answer(), {"self": [], "user": []}
    for _ in range(rng.randrange(4)):
        to, words = rng.choice(["self", "self", "user"]), answer_texts.words(rng)
        said[to].append(words)
        answer.parts += [f" to={to}", MESSAGE, words, *AGAIN]
    for _ in range(rng.randrange(3)):
        name, arguments = answer_texts.call(rng)
        answer.calls.append((name, arguments))
        answer.parts += [f" to={name}", MESSAGE, answer_texts.written(CALLS, name, arguments)]
        answer.parts += AGAIN
    if answer.calls or rng.random() < 0.1:
        del answer.parts[-3:]
    else:
        said["user"].append(answer_texts.words(rng, 40))
        answer.parts += [" to=user", MESSAGE, said["user"][-1], LAST]
    answer.reasoning, answer.content = ("\n".join(filter(None, one)) for one in said.values())
    return answer


@pytest.mark.parametrize("seed", range(N_ANSWERS))
def test_answers_whole_and_cut(tokenizer, seed):
    answer = answer_of(random.Random(seed))
    ids = ids_of(tokenizer, answer.parts)
    found = check(tokenizer, ATEM, ids, seed)
    assert found[:2] == (answer.reasoning, answer.content)
    assert [(name, json.loads(arguments)) for name, arguments in found[2]] == answer.calls
    content = check_cut(tokenizer, ATEM, ids, seed, found)
    assert answer.content.startswith(content.rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        (["plain words"], ("", "plain words", [])),
        ([], ("", "", [])),
        ([MESSAGE, "hi", LAST], ("", "hi", [])),
        ([" to=self"], ("", "", [])),
        ([" to=self", MESSAGE, "so", *AGAIN, " to=user", MESSAGE, "a"], ("so", "a", [])),
        ([" to=look", MESSAGE, "no call", LAST], ("", "", [])),
        ([" to=user", MESSAGE, "<atem:function_calls>"], ("", "<atem:function_calls>", [])),
        ([" to=user", MESSAGE, "a", START, "assistant to=user", MESSAGE, "b"], ("", "a\nb", [])),
    ],
)
def test_corners(tokenizer, parts, wanted):
    for seed in range(10):
        assert check(tokenizer, ATEM, ids_of(tokenizer, parts), seed) == wanted


def test_a_call_that_nobody_offered_is_not_shown():
    parser = ATEM.parser(Start.OPEN, None)
    assert parser.push(f" to=look{MARK}<|message|>{BONN}") == (BONN, "")
    assert (parser.calls, parser.take_deltas()) == ([], [])


THOUGHT = " to=self<|message|>Hm {.<|eom|><|start|>assistant"
TEXT = " to=user<|message|>It is hot."
BONN = answer_texts.written(CALLS, "weather", {"city": "Bonn\n<b>", "days": 3})
CALL = f" to=weather<|message|>{BONN}"
NOW = f" to=now<|message|>{answer_texts.written(CALLS, 'now', {})}"
NEXT = "<|eom|><|start|>assistant"


def test_grammars(tokenizer, takes):
    auto = grammar(ATEM, tokenizer, Start.OPEN, required=False)
    required = grammar(ATEM, tokenizer, Start.OPEN)
    for before in ("", THOUGHT, THOUGHT + TEXT + NEXT):
        for calls in (CALL, NOW, CALL + NEXT + NOW):
            assert takes(required, before + calls)
            assert takes(auto, before + calls)
        assert takes(auto, before + TEXT)
        assert not takes(required, before + TEXT)
    assert not takes(grammar(ATEM, tokenizer, Start.OPEN, parallel=False), CALL + NEXT + NOW)
    for wrong in (
        "Hello",
        CALL.replace("3<", "x<"),
        CALL.replace("to=weather", "to=other"),
        CALL.replace("to=weather", "to=now"),
        CALL + NEXT + TEXT,
    ):
        assert not takes(auto, wrong), wrong
    going_on = grammar(ATEM, tokenizer, Start.CONTENT, required=False)
    assert takes(going_on, " and so on")
    assert takes(going_on, NEXT + CALL)
    assert not takes(grammar(ATEM, tokenizer, Start.CONTENT), " and so on")


def test_a_form_of_content(tokenizer, takes):
    source = ATEM.body_grammar(BODY, tokenizer, Start.OPEN)
    assert takes(source, THOUGHT + TEXT.replace("It is hot.", "123"))
    assert not takes(source, TEXT)
    assert not takes(source, "123")
    assert ATEM.body_grammar(BODY, tokenizer, Start.CONTENT) is BODY
    how = {"required": False, "body": BODY}
    assert grammar(ATEM, tokenizer, Start.CONTENT, **how) is BODY
    either = grammar(ATEM, tokenizer, Start.OPEN, **how)
    assert takes(either, CALL)
    assert takes(either, TEXT.replace("It is hot.", "123"))
    assert not takes(either, TEXT)


def test_what_a_template_tells_and_gets():
    template = ChatTemplate({"default": SAYS})
    assert answer_format(template, tools=True) is ATEM
    assert ATEM.needs_parser(None)
    assert ATEM.thinks
    assert ATEM.start_of("…<|eot|><|start|>assistant", None) is Start.OPEN
    assert ATEM.before_content(Start.OPEN) == " to=user<|message|>"
    assert effort_variables("low", template, {})["reasoning_strength"] == "low"
    assert uses_effort("high", template)
    assert LAST in END_OF_TURN
    assert END not in END_OF_TURN
    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    before = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    (shown,), _ = ATEM.conversation([before], None)
    assert shown == {**before, "content": "", "reasoning_content": "I look."}
    (shown,), _ = ATEM.conversation([{**before, "reasoning": "Hm."}], None)
    assert (shown["content"], shown["reasoning"]) == ("", "Hm.\nI look.")
