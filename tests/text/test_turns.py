"""Every order of roles in the words of every template: each text is told once, in its place."""

import pytest

from data_files import data
from lanewise.text.answers.families import answer_format
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.conversation import render_conversation
from lanewise.text.turns import without_session

REAL = (
    "Qwen-Qwen2.5-7B-Instruct",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
TOOL = {"type": "function", "function": {"name": "other", "description": "o", "parameters": {}}}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
LOOP = "{% for m in messages %}"
SAYS = "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c | tojson }}"
SAYS += "{% endfor %}<|end|>{% endfor %}"
BAD = "{{ raise_exception('%s') }}{%% endif %%}"
# The rules that published templates have, each alone.
RULES = {
    "takes all": LOOP + SAYS,
    "system first": LOOP
    + "{% if m.role == 'system' and not loop.first %}"
    + BAD % "System message must be at the beginning."
    + SAYS,
    "a user somewhere": "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
    + BAD % "No user query found in messages."
    + LOOP
    + SAYS,
    "no system": LOOP
    + "{% if m.role == 'system' %}"
    + BAD % "System role not supported"
    + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    + BAD % "Conversation roles must alternate"
    + SAYS,
    "drops later system": LOOP
    + "{% if m.role != 'system' or loop.first %}"
    + SAYS[:-12]
    + "{% endif %}{% endfor %}",
    "user and assistant in turn": "{% set n = namespace(i=0) %}"
    + LOOP
    + "{% if m.role in ('user', 'assistant') and not m.tool_calls %}"
    "{% if (m.role == 'user') != (n.i % 2 == 0) %}"
    + BAD % "roles must alternate user and assistant"
    + "{% set n.i = n.i + 1 %}{% endif %}{% if m.role == 'system' and not loop.first %}"
    + BAD % "Unexpected role"
    + SAYS,
    "one call": LOOP
    + "{% if m.tool_calls and m.tool_calls | length > 1 %}"
    + BAD % "This model only supports single tool-calls at once!"
    + SAYS,
    "arguments are an object": LOOP
    + "<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}"
    "{% endfor %}{% endfor %}<|end|>{% endfor %}",
}
# s: system, u: user, a: assistant, c and p: one call and two, t: a result.
ORDERS = (
    *("u", "us", "ss", "ssuu", "usu", "suaau", "sau", "suasu", "uaasuu", "auau"),
    *("suctu", "suctsau", "supttau", "ucu", "suctctctau"),
)


def conversation(order):
    """Messages, and the texts that are in them."""
    messages, texts, ids = [], [], []
    for i, code in enumerate(order):
        role = {"s": "system", "u": "user", "t": "tool"}.get(code, "assistant")
        message = {"role": role, "content": ""}
        if code in "cp":
            calls = [(f"call_{i}_{n}", f"value {i} of {n}") for n in range(1 + (code == "p"))]
            message["tool_calls"] = [
                {"id": id_, "type": "function", "function": {"name": "f", "arguments": {"k": v}}}
                for id_, v in calls
            ]
            ids = [id_ for id_, _ in calls]
            texts += [value for _, value in calls]
        else:
            message["content"] = f"Wörd {i} here"
            texts.append(message["content"])
        if code == "t":
            message["tool_call_id"] = ids.pop(0)
        messages.append(message)
    return messages, texts


def render(template, messages, tools=None):
    form = answer_format(template, tools=bool(tools))
    messages, tools = form.conversation(messages, tools)
    return render_conversation(template, messages, tools, {}, add_generation_prompt=True)


@pytest.fixture(params=[*RULES, *REAL])
def template(request):
    if request.param in RULES:
        return ChatTemplate({"default": RULES[request.param]}, TOKENS)
    text = data(f"templates/{request.param}.jinja").read_text(encoding="utf-8")
    return ChatTemplate({"default": text}, TOKENS)


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
def test_every_text_is_told_once_and_in_order(template, tools):
    for order in ORDERS:
        messages, texts = conversation(order)
        told = render(template, messages, tools)
        assert [told.count(text) for text in texts] == [1] * len(texts), (order, told)
        said = [text for text in texts if text.startswith("Wörd")]
        if "Nemo" in str(template.source()) or "[INST]" in template.source():
            said = said[order[0] == "s" :]  # its makers put the system's words last
        assert sorted(said, key=told.index) == said, (order, told)


def test_nothing_is_joined_that_a_template_takes_apart():
    for order in ORDERS:
        messages, texts = conversation(order)
        told = render(ChatTemplate({"default": RULES["takes all"]}, TOKENS), messages)
        assert told.count("<|end|>") == len(messages), order
        assert all(text in told for text in texts)


def test_what_a_session_is_called_is_no_part_of_a_prompt():
    header = "x-anthropic-billing-header: cc_version=2.1.197.0; cc_entrypoint=cli; cch=00ab1;"
    system = {"role": "system", "content": f"{header}\nYou are an agent."}
    user = {"role": "user", "content": f"{header}\nwhat is this?"}
    assert without_session([system, user]) == [{**system, "content": "You are an agent."}, user]
    assert without_session([{**system, "content": header}, user]) == [user]
    agents = {**system, "content": "You are an agent."}
    machine = {"role": "system", "content": "The machine is a Linux."}
    answer, later = {"role": "assistant", "content": "yes"}, {**machine, "content": "a day later"}
    given = [system, user, machine, answer, user, later]
    assert without_session(given) == [agents, machine, user, answer, user, later]
    assert without_session([agents, *given[1:]]) == [agents, *given[1:]]  # of another client
    assert without_session([system, answer, machine]) == [agents, answer, machine]


def test_a_template_that_refuses_texts_gives_its_first_reason():
    refuses = "{% for m in messages %}{% if 'no' in m.content %}" + BAD % "no such word"
    template = ChatTemplate({"default": f"{refuses}{{{{ m.content }}}}{{% endfor %}}"})
    with pytest.raises(ChatTemplateError, match="no such word"):
        render(template, [{"role": "user", "content": "no"}])
