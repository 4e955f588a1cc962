"""Conversations in the words of every template: nothing of them is lost, and places are found."""

import json
from pathlib import Path

import pytest

from data_files import data
from lanewise.text.answers.families import answer_format
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.conversation import render_conversation

GOLDEN = Path(__file__).parents[1] / "golden/templates"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
REAL = (
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "Qwen-Qwen2.5-7B-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
WRITTEN = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "trims": (
        "{% for m in messages %}[{{ m.role }}]\n{{ m.content | trim }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant]\n{% endif %}"
    ),
    "ignores system": (
        "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    ),
}
HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "call_a7Xx", "type": "function"}
CALL["function"] = {"name": "weather", "arguments": {"city": "Köln"}}
ASKED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "call_a7Xx", "content": "it rains"}
TOOL = {"type": "function", "function": {"name": "other", "description": "o", "parameters": {}}}
TOOL["function"]["parameters"] = {"type": "object", "properties": {}}


@pytest.fixture(params=[*REAL, *WRITTEN])
def template(request):
    name = request.param
    if name in WRITTEN:
        return ChatTemplate({"default": WRITTEN[name]}, TOKENS)
    text = data(f"templates/{name}.jinja").read_text(encoding="utf-8")
    if name.endswith("tool_use"):
        return ChatTemplate({"default": WRITTEN["chatml"], "tool_use": text}, TOKENS)
    return ChatTemplate({"default": text}, TOKENS)


def render(template, *messages, tools=None, continued=False, prompt=True):
    """As a chat request's messages are rendered."""
    form = answer_format(template, tools=bool(tools))
    messages, tools = form.conversation(messages, tools)
    return render_conversation(
        *(template, messages, tools, {"date_string": "1 May 2025"}),
        add_generation_prompt=prompt and not continued,
        continued=continued,
    )


PARTS = ("", ">", "e", "end", "n", "hello", "assistant", "<", "two\nlines", "a > b", "0")


@pytest.mark.parametrize("part", PARTS)
def test_a_message_is_continued_where_it_ends(template, part):
    def begun(content):
        message = {"role": "assistant", "content": content}
        return render(template, HELLO, message, continued=True)

    before, after = begun("a1b2c3").rsplit("a1b2c3", 1)
    assert after == ""
    assert begun(part) == before + part
    assert begun(part + "x") == before + part + "x"
    # What the template writes behind an answer is not there.
    assert render(template, HELLO, {"role": "assistant", "content": "q"}).startswith(before + "q")


def test_space_at_the_end_of_a_continued_message_is_the_templates_affair():
    for name, kept in (("chatml", "an answer  \n"), ("trims", "an answer")):
        template = ChatTemplate({"default": WRITTEN[name]})
        message = {"role": "assistant", "content": "an answer  \n"}
        assert render(template, HELLO, message, continued=True).endswith(f"\n{kept}")
    empty = {"role": "assistant", "content": "\n"}
    for name, kept in (("chatml", "assistant\n\n"), ("trims", "[assistant]\n")):
        template = ChatTemplate({"default": WRITTEN[name]})
        assert render(template, HELLO, empty, continued=True).endswith(kept)


def test_a_message_that_is_not_shown_cannot_be_continued():
    template = ChatTemplate({"default": "{{ messages[0].content }}"})
    with pytest.raises(ChatTemplateError, match="does not show the last message"):
        render(template, HELLO, {"role": "assistant", "content": "x"}, continued=True)


@pytest.mark.parametrize("content", ["", None, "let me see"], ids=repr)
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without", "with"])
def test_calls_and_results_are_told_with_and_without_tools(template, tools, content):
    asked = ASKED if content == "" else {**ASKED, "content": content}
    text = render(template, HELLO, asked, ANSWERED, tools=tools)
    assert "weather" in text
    assert "K\\u00f6ln" in text or "Köln" in text
    assert "it rains" in text


def test_templates_without_tools_tell_history_alike_with_and_without_them():
    template = ChatTemplate({"default": WRITTEN["chatml"]})
    history = HELLO, ASKED, ANSWERED, {**ANSWERED, "content": "and snows"}
    plain = render(template, *history)
    assert plain.endswith(
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nit rains\n</tool_response>\n"
        "<tool_response>\nand snows\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    explained = render(template, *history, tools=[TOOL])
    assert explained.endswith(plain.split("hello")[1])


def test_system_words_are_told_by_every_template(template):
    text = render(template, {"role": "system", "content": "be brief"}, HELLO)
    assert text.index("be brief") < text.index("hello")
    alone = render(template, {"role": "system", "content": "be brief"})
    assert "be brief" in alone or "raise" in template.source()


def test_a_template_without_a_system_role_has_its_words_in_the_users_turns(template):
    plain = render(template, {"role": "user", "content": "be brief\n\nhello"})
    told = render(template, {"role": "system", "content": "be brief"}, HELLO)
    folds = "System role not supported" in template.source() or "!= 'system'" in template.source()
    assert told == plain or not folds


def test_a_template_that_changes_system_words_has_a_system_role():
    text = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}"
    shouts = ChatTemplate({"default": text})
    # The words that were tried are shown, if not as they were: that is what it does to the others.
    assert "BE BRIEF" in render(shouts, {"role": "system", "content": "be brief"}, HELLO)


@pytest.mark.parametrize(
    "given", ["call_a7Xx", "abc", "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-é😀", "", None]
)
def test_foreign_ids_become_those_that_a_template_takes(given):
    file = data("templates/mistralai-Mistral-Nemo-Instruct-2407.jinja")
    template = ChatTemplate({"default": file.read_text(encoding="utf-8")}, TOKENS)
    asked = {**ASKED, "tool_calls": [{**CALL, "id": given}]}
    answered = {**ANSWERED, "tool_call_id": given}
    text = render(template, HELLO, asked, answered, tools=[TOOL])
    (made,) = {part.split('"')[0] for part in text.split('id": "')[1:]}
    assert len(made) == 9
    assert made.isalnum()
    assert text == render(template, HELLO, asked, answered, tools=[TOOL])
    own = {**ASKED, "tool_calls": [{**CALL, "id": "Ab3dE6gH9"}]}
    assert '"id": "Ab3dE6gH9"' in render(template, HELLO, own)


def test_ids_of_different_calls_stay_different():
    form = answer_format(ChatTemplate({"default": "[TOOL_CALLS] tools"}), tools=True)
    calls = [{**CALL, "id": f"call_{i}"} for i in range(1000)]
    ((message,), _) = form.conversation([{"role": "assistant", "tool_calls": calls}], None)
    assert len({call["id"] for call in message["tool_calls"]}) == 1000


def test_what_templates_can_do_is_tried_once():
    template = ChatTemplate({"default": "{{ messages | length }}{{ messages[0].content }}"})
    renders = []
    own = template.render_within
    template.render_within = lambda *args: renders.append(args) or own(*args)
    for _ in range(3):
        assert render_conversation(template, [HELLO], None, {}, add_generation_prompt=True)
    tried = len(renders) - 3
    assert 0 < tried < 10
    assert json.dumps(renders[-1][1]) == json.dumps([HELLO])
