"""How much one request may bring; what is beyond is named, with what there is and what may be."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanewise.api.shared.request_budgets import MAX_PARTS, Parts, RequestBudgets, text_size
from toy_server import toy_server

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
OK = {"prompt": "abc", "max_tokens": 2}
USER = {"role": "user", "content": "hi"}
OK_CHAT = {"messages": [USER], "max_tokens": 2}


def tool(index: int, description: str = "") -> dict:
    return {"type": "function", "function": {"name": f"f{index}", "description": description}}


def refused(client, path: str, body: dict | bytes) -> tuple[str | None, str]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content)
    assert response.status_code == 400, response.text[:200]
    error = response.json()["error"]
    assert len(response.content) < 3000
    return error["param"], error["message"]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"stop": ["x"] * 65}, "stop", "65 strings are too many; accepted: at most 64"),
        ({"stop": "x" * 8193}, "stop", "8193 characters are too many; accepted: at most 8192"),
        ({"stop_token_ids": [5] * 1025}, "stop_token_ids", "1025 ids are too many"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "at most 1024"),
        ({"allowed_token_ids": [5] * 5000}, "allowed_token_ids", "5000 ids are more than there"),
        ({"prompt": ["x"] * 17}, "prompt", "17 prompts with n = 1 are 17 sequences"),
        ({"logit_bias": {"5": None}}, "logit_bias.5", "is not a number from -100 to 100"),
        ({"logit_bias": {"5": 10**400}}, "logit_bias.5", "is not a number from -100 to 100"),
        ({"logit_bias": {"5": True}}, "logit_bias.5", "is not a number from -100 to 100"),
        ({"temperature": "x" * 1_000_000}, "temperature", 'got "xxx'),
        ({"temperature": [[1] * 300_000]}, "temperature", "got [[1, 1, "),
        ({"max_tokens": 10**400}, "max_tokens", "2147483648"),
    ],
)
def test_too_much_for_a_completion(client, change, param, says):
    found, message = refused(client, COMPLETIONS, OK | change)
    assert (found, message.startswith(param)) == (param, True)
    assert says in message


def calls(arguments: str) -> list[dict]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    return [USER, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        (
            {"messages": [USER] * 16_385},
            "messages",
            "16385 messages and parts of them are too many; accepted: at most 16384",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 16_384}]},
            "messages",
            "16385 messages and parts of them",
        ),
        ({"tools": [tool(i) for i in range(129)]}, "tools", "129 tools are too many; accepted: at"),
        ({"tools": [tool(i, "x" * 20_000) for i in range(60)]}, "tools", "at most 1048576"),
        (
            {"messages": calls("[" + "[]," * 40_000 + "[]]")},
            "messages",
            "arguments of tool calls has 40002 objects and lists; accepted: at most 16384",
        ),
        (
            {"messages": calls('{"a":"' + "x" * 200_000 + '"}')},
            "messages",
            "maximum context length",
        ),
        ({"messages": [{**USER, "name": "x" * 200_000}]}, "messages", "maximum context length"),
        ({"chat_template_kwargs": {"x": ["y" * 200_000]}}, "messages", "maximum context length"),
        ({"messages": [{"role": "king"}] * 60_000}, "messages[0].role", "input should be"),
    ],
)
def test_too_much_for_a_chat(client, change, param, says):
    found, message = refused(client, CHAT, OK_CHAT | change)
    assert found == param
    assert says in message


def test_as_much_as_is_accepted_is(client):
    body = OK | {"stop": [f"<{i}>" for i in range(64)], "stop_token_ids": [5] * 1024}
    assert client.post(COMPLETIONS, json=body).status_code == 200
    body = OK_CHAT | {"tools": [tool(i) for i in range(128)], "tool_choice": "none"}
    # As many tools are no problem, but for this model's context.
    error = client.post(CHAT, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_the_operator_sets_what_is_accepted():
    with toy_server(request_budgets=RequestBudgets(max_stop_strings=1, max_messages=1)) as server:
        assert refused(server.client, COMPLETIONS, OK | {"stop": ["x", "y"]})[0] == "stop"
        assert refused(server.client, CHAT, {"messages": [USER, USER]})[0] == "messages"
        assert server.client.post(COMPLETIONS, json=OK | {"stop": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (b"[" + b"{}," * 70_000 + b"{}]", "70003 objects and lists; accepted: at most 65536"),
        (b"[" + b"1," * 1_600_000 + b"1]", "values; accepted: at most 1572864"),
        (b"[" + b'"",' * 300_000 + b'""]', "strings; accepted: at most 262144"),
        (
            b"{" + b",".join(b'"%d":1' % i for i in range(140_000)) + b"}",
            "members of objects; accepted: at most 131072",
        ),
    ],
)
def test_json_of_too_many_parts_is_not_parsed(client, field, says):
    for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        found, message = refused(client, path, b'{"prompt":"abc","anything":' + field + b"}")
        assert found is None
        assert message.startswith("the body has ")
        assert says in message


def test_text_counts_for_nothing(client):
    text = '[{\\",:]}"' * 80_000
    answer = client.post("/tokenize", json={"prompt": text})
    assert answer.status_code == 200
    back = client.post("/detokenize", json={"tokens": answer.json()["tokens"]}).json()["prompt"]
    assert back.endswith(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a"\\[{,:é'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('a"\\,:'), inner),
    max_leaves=30,
)


def counted(value: object) -> Parts:
    """Values that follow a comma or begin something, strings, members, objects and lists."""
    if isinstance(value, str):
        return Parts(0, 1, 0, 0)
    if not isinstance(value, dict | list):
        return Parts(0, 0, 0, 0)
    inside = list(value.values()) if isinstance(value, dict) else value
    sums = map(sum, zip(Parts(0, 0, 0, 0), *map(counted, inside), strict=True))
    keys = len(value) if isinstance(value, dict) else 0
    own = Parts(1 + max(0, len(inside) - 1), keys, keys, 1)
    return Parts(*(a + b for a, b in zip(own, sums, strict=True)))


@given(values, st.booleans())
def test_parts_are_counted_without_parsing(value, ascii_only):
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert Parts.of(text) == counted(value)
    # The beginning of what is no JSON counts as it does alone.
    assert all(a >= b for a, b in zip(Parts.of(text + '"[\\"'), counted(value), strict=True))


@given(values)
def test_sizes_are_about_those_of_the_json(value):
    size, written = text_size(value), len(json.dumps(value, ensure_ascii=False))
    assert size <= 2 * written + 8
    assert 6 * size >= written - 30


def test_the_largest_counts_are_for_people_not_for_parsers():
    assert MAX_PARTS.containers >= 4 * RequestBudgets().max_messages
    assert MAX_PARTS.members >= 4 * RequestBudgets().max_messages
