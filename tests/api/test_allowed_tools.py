"""``allowed_tools``: which of a conversation's tools may be called now."""

import pytest

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": None}}
    for name in ("weather", "now")
]
NOW = {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize(
    ("mode", "names", "reasons"),
    [("required", ["now"], {"tool_calls"}), ("auto", ["now"], {"stop", "length", "tool_calls"})],
)
def test_only_allowed_tools_are_called(client, template, mode, names, reasons):
    template("{{ tools | tojson }}{{ messages[0].content }}{# <tool_call> #}")
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": allowed}}
    body = {"messages": HELLO, "tools": TOOLS, "max_tokens": 150, "temperature": 1.5}
    prompts = {client.post(CHAT, json=body).json()["usage"]["prompt_tokens"]}
    for seed in range(3):
        answer = client.post(CHAT, json=body | {"tool_choice": choice, "seed": seed}).json()
        [found] = answer["choices"]
        calls = found["message"].get("tool_calls") or []
        assert {call["function"]["name"] for call in calls} <= set(names)
        assert found["finish_reason"] in reasons
        prompts.add(answer["usage"]["prompt_tokens"])
    assert len(prompts) == 1, "the prompt tells of all tools"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"mode": "auto", "tools": [{"type": "function", "function": {"name": "no"}}]}, ""),
        ({"mode": "auto", "tools": []}, ".allowed_tools.tools"),
        ({"mode": "none", "tools": [NOW]}, ".allowed_tools.mode"),
    ],
)
def test_allowed_tools_that_make_no_sense(client, choice, param):
    body = {"messages": HELLO, "tools": TOOLS}
    body["tool_choice"] = {"type": "allowed_tools", "allowed_tools": choice}
    answer = client.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"tool_choice{param}"
