"""The chat template tells in which form a family answers."""

import pytest

from data_files import data
from lanewise.text.answers.braced_calls import GEMMA
from lanewise.text.answers.content_tags import COMMAND_RESPONSE, HUNYUAN_ANSWER, HUNYUAN_LABELLED
from lanewise.text.answers.families import HARMONY, answer_format, effort_variables
from lanewise.text.answers.json_calls import (
    APERTUS,
    COMMAND,
    GENERIC,
    GRANITE,
    HERMES,
    HUNYUAN,
    LLAMA,
    MISTRAL,
    NEMOTRON,
    PHI,
)
from lanewise.text.answers.named_calls import MISTRAL_NAMED, MISTRAL_WITH_IDS
from lanewise.text.answers.nested_calls import MINIMAX_M3
from lanewise.text.answers.python_calls import LFM2, OLMO
from lanewise.text.answers.sectioned_calls import DEEPSEEK, DEEPSEEK_V31, KIMI
from lanewise.text.answers.tagged_calls import GLM, GLM_TIGHT, MINIMAX, QWEN3_CODER, SEED
from lanewise.text.answers.thinking import (
    APERTUS_THINK,
    COMMAND_THINK,
    GEMMA_THINK,
    MINIMAX_THINK,
    MISTRAL_THINK,
    SEED_THINK,
    THINK,
    Start,
)
from lanewise.text.chat_template import ChatTemplate


@pytest.mark.parametrize(
    ("name", "calls", "thinking"),
    [
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", HERMES, None),
        ("Qwen-Qwen2.5-7B-Instruct", HERMES, None),
        ("mistralai-Mistral-Nemo-Instruct-2407", MISTRAL, None),
        ("meta-llama-Llama-3.1-8B-Instruct", LLAMA, None),
        ("meta-llama-Llama-3.2-3B-Instruct", LLAMA, None),
        ("google-gemma-2-2b-it", GENERIC, None),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", GENERIC, THINK),
    ],
)
def test_published_templates(name, calls, thinking):
    text = data(f"templates/{name}.jinja").read_text()
    form = answer_format(ChatTemplate({"default": text}), tools=True)
    assert (form.calls, form.thinking) == (calls, thinking)


# What the templates of other families say, as far as it tells them apart.
@pytest.mark.parametrize(
    ("text", "calls", "thinking"),
    [
        ("{{ tools }}<tool_call>\n<function=' + name + '>\n<parameter=", QWEN3_CODER, None),
        ("{{ tools }}<tool_call>\n<function=' + name + '></think>", QWEN3_CODER, THINK),
        ("{{ tools }}<tool_call>x\n<arg_key>k</arg_key>\n<arg_value>v</think>", GLM, THINK),
        ("{{ tools }}<tool_call>x<arg_key>k</arg_key><arg_value>", GLM_TIGHT, None),
        ("<seed:tool_call>\n<function=</seed:think>", SEED, SEED_THINK),
        ("[TOOL_CALLS]' + name + '[ARGS]' [/THINK]", MISTRAL_NAMED, MISTRAL_THINK),
        ("[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]'", MISTRAL_WITH_IDS, None),
        ("'<|channel>thought\\n' + thinking + '\\n<channel|>'", GENERIC, GEMMA_THINK),
        ("'<|channel>thought\\n' {{ tools }}<|tool_call>call:<channel|>'", GEMMA, GEMMA_THINK),
        ("{{ tools }}<function_calls>\n<|im_start|>assistant\n<think>", OLMO, THINK),
        ("{{ tools }}<|inner_prefix|><|tools_prefix|>[", APERTUS, APERTUS_THINK),
        ('{{ tools }}<|START_ACTION|>"tool_name"<|END_THINKING|>', COMMAND, COMMAND_THINK),
        ("{{ tools }}<tool_calls>[{</tool_calls></think>", HUNYUAN, THINK),
        ("{{ tools }}<minimax:tool_call></think>", MINIMAX, THINK),
        ("{{ tools }}]<]minimax[>[<tool_call></mm:think>", MINIMAX_M3, MINIMAX_THINK),
        ("{{ tools }}" + DEEPSEEK.begin + "```json</think>", DEEPSEEK, THINK),
        ("{{ tools }}" + DEEPSEEK.begin + "</think>", DEEPSEEK_V31, THINK),
        (DEEPSEEK.begin + "```json", GENERIC, None),  # only what was called is shown
        ("{{ tools }}<|tool_calls_section_begin|>", KIMI, None),
        ("List of tools: <|tool_list_start|>{{ tools }}<|tool_list_end|>", LFM2, None),
        ("{{ message['tools'] }}<|/tool|>", PHI, None),
        ("{{ tools }}respond only with <|tool_call|> followed by", GRANITE, None),
        ("{{ tools }}use <TOOLCALL>[{...}]</TOOLCALL></think>", NEMOTRON, THINK),
        ("{{ tools }}<tool_call>\n{\"name\": '</think>'", HERMES, THINK),
    ],
)
def test_words_of_templates(text, calls, thinking):
    form = answer_format(ChatTemplate({"default": text}), tools=False)
    assert (form.calls, form.thinking) == (calls, thinking)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<|START_RESPONSE|>{{ message.content }}<|END_RESPONSE|>", COMMAND_RESPONSE),
        ("content.split('<answer>')", HUNYUAN_ANSWER),
        ("hy_Assistant", HUNYUAN_ANSWER),
        ("<tool_calls>[{},...]</tool_calls>，否则，以助手：开头进行回复", HUNYUAN_LABELLED),
        ("以助手：开头", None),
        ("{{ message.content }}", None),
    ],
)
def test_what_is_around_content(text, content):
    form = answer_format(ChatTemplate({"default": text}), tools=False)
    assert form.content == content
    assert form.needs_parser(None) == (content is not None)


def test_harmony_is_found_by_its_channels():
    text = "<|start|>assistant<|channel|>analysis<|message|>"
    form = answer_format(ChatTemplate({"default": text}), tools=True)
    assert form is HARMONY
    assert form.needs_parser(None)
    assert form.start_of("…<|end|><|start|>assistant", None) is Start.OPEN
    assert form.start_of("…<|message|>Well", "Well") is Start.CONTENT


def test_the_prompt_tells_whether_reasoning_has_begun():
    form = answer_format(ChatTemplate({"default": "<think></think>"}), tools=False)
    assert form.start_of("<|assistant|>\n", None) is Start.OPEN
    assert form.start_of("<|assistant|><think>\n", None) is Start.THOUGHT
    assert form.start_of("<|assistant|><think>\n\n</think>\n\n", None) is Start.CONTENT
    assert form.start_of("<think>\nso", "<think>\nso") is Start.THOUGHT
    assert form.start_of("Yes, and", "Yes, and") is Start.MIDDLE
    plain = answer_format(ChatTemplate({"default": "{{ message.content }}"}), tools=False)
    assert plain.start_of("<|assistant|>\n", None) is Start.CONTENT
    assert plain.start_of("Yes, and", "Yes, and") is Start.MIDDLE


def test_gemma_4_has_thought_nothing_where_its_prompt_says_so():
    text = "'<|channel>thought\\n' + thinking + '\\n<channel|>'"
    form = answer_format(ChatTemplate({"default": text}), tools=False)
    closed = "<|turn>model\n<|channel>thought\n<channel|>"
    assert form.start_of(closed, None) is Start.CONTENT
    assert form.start_of("<|turn>model\n", None) is Start.OPEN
    parser = form.parser(Start.OPEN, None)
    pieces = ("<|channel>", "thought\nSo.\n<chan", "nel|>Yes.")
    found = [parser.push(piece, last=piece is pieces[-1]) for piece in pieces]
    assert ["".join(part) for part in zip(*found, strict=True)] == ["So.", "Yes."]


def test_no_effort_switches_reasoning_off_where_a_template_can():
    hybrid = ChatTemplate({"default": "{% if enable_thinking %}<think>{% endif %}"})
    other = ChatTemplate({"default": "{{ reasoning_effort }}"})
    assert effort_variables(None, hybrid, {"a": 1}) == {"a": 1}
    off = {"reasoning_effort": "none", "enable_thinking": False}
    assert effort_variables("none", hybrid, {}) == off
    assert effort_variables("none", hybrid, {"enable_thinking": True})["enable_thinking"]
    assert effort_variables("low", hybrid, {}) == {"reasoning_effort": "low"}
    assert effort_variables("none", other, {}) == {"reasoning_effort": "none"}


CALL = {"type": "function", "function": {"name": "now", "arguments": {}}}
NOW = [{"type": "function", "function": {"name": "now"}}]


def test_what_templates_get_of_messages_and_tools():
    hello = [{"role": "user", "content": "hi"}]

    def conversation(text, messages=hello, tools=NOW):
        form = answer_format(ChatTemplate({"default": text}), tools=True)
        return form.conversation(messages, tools)

    assert conversation("{{ tools }}") == (hello, NOW)
    assert conversation("{{ tools }}", tools=None) == (hello, None)
    explained, none = conversation("")
    assert none is None
    assert "You may call functions" in explained[0]["content"]
    system = {"role": "system", "content": "", "tools": '[{"name": "now"}]'}
    assert conversation("{{ message['tools'] }}") == ([system, *hello], None)
    told = [{"role": "system", "content": "Be kind."}, *hello]
    assert conversation("{{ message['tools'] }}", told) == (
        [{**system, "content": "Be kind."}, *hello],
        None,
    )


def test_harmony_has_one_kind_of_words_before_a_call():
    before = {"role": "assistant", "content": "I look.", "reasoning": "Hm.", "tool_calls": [CALL]}
    (shown,), _ = HARMONY.conversation([before], None)
    assert shown == {**before, "content": "", "reasoning": "Hm.\nI look."}
    for other in ({**before, "tool_calls": []}, {**before, "reasoning": ""}):
        assert HARMONY.conversation([other], None) == ([other], None)
