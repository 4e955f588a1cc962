"""The first requests of programs that are not installed here, as their sources write them."""

import json

import openai
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a shell command and returns its output.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "workdir": {"type": "string", "description": "Where to run it"},
            "timeout_ms": {"type": "number"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
APPLY_PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {
        "type": "grammar",
        "syntax": "lark",
        "definition": 'start: "*** Begin Patch" LF line+ "*** End Patch" LF?\n'
        "line: /[^*\\n][^\\n]*/ LF\n"
        "%import common.LF\n",
    },
}
PLACE = "<environment_context>\n  <cwd>/src</cwd>\n  <shell>bash</shell>\n</environment_context>"


def said(role: str, text: str) -> dict:
    """A message of Codex."""
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


CODEX = {
    "instructions": "You are a coding agent.",
    "input": [said("developer", "Be brief."), said("user", PLACE), said("user", "List the files.")],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0198c7e2-3d5f-7cc1-9f10-1f4b0f6b5a01",
    "text": {"verbosity": "medium"},
}
AIDER = {
    "messages": [
        {"role": "system", "content": "Act as an expert software developer."},
        {"role": "user", "content": "Add a docstring."},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "I have *added these files*:\n\na.py\n```\nx = 1\n```\n"},
        {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
        {"role": "user", "content": "Add a docstring.\nONLY answer with edits."},
    ],
    "temperature": 0,
    "stream": True,
}


@pytest.fixture(scope="module")
def sdk(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
        yield sdk


def events(sdk, path, body):
    """What a server sends for a body that is sent as it is."""
    stream = sdk.post(
        path, body=body, cast_to=object, stream=True, stream_cls=openai.Stream[object]
    )
    return list(stream)


@pytest.mark.parametrize("tools", [[], [SHELL], [APPLY_PATCH]], ids=["none", "shell", "patch"])
def test_codex(sdk, model, tools):
    """It sends no limit; a stop ends the bundled model, which seldom does so itself."""
    body = {**CODEX, "model": model, "tools": tools, "stop": ["."]}
    sent = events(sdk, "/responses", body)
    kinds = [event["type"] for event in sent]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert sent[-1]["response"]["usage"]["output_tokens"] > 0
    done = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert done == sent[-1]["response"]["output"]
    deltas = [event["delta"] for event in sent if event["type"] == "response.output_text.delta"]
    texts = [part["text"] for item in done for part in item.get("content", ())]
    assert "".join(deltas) == "".join(texts)
    assert done


def test_codex_after_its_call(sdk, model):
    arguments = json.dumps({"command": ["ls"]})
    call = {"type": "function_call", "name": "shell", "arguments": arguments, "call_id": "call_1"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": "a.py\n"}
    body = {**CODEX, "model": model, "tools": [SHELL], "stop": ["."]}
    body["input"] = [*CODEX["input"][1:], call, result]
    assert events(sdk, "/responses", body)[-1]["response"]["usage"]["output_tokens"] > 0


def test_aider(sdk, model):
    """Its later versions go through litellm, which adds nothing for servers like OpenAI's."""
    body = {**AIDER, "model": model, "stop": ["."]}
    sent = events(sdk, "/chat/completions", body)
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in sent)
    assert text
    assert sent[-1]["choices"][0]["finish_reason"] in ("stop", "length")
