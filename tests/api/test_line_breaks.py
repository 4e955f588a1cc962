"""Streams are read by lines, and some clients know more line breaks than there are in JSON."""

import json

import pytest

from toy import Script

TEXT = "a\u2028b\u2029c\x85d\n\re"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}
ASKS = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 40},
    "/v1/chat/completions": HELLO | {"max_tokens": 40},
    "/v1/responses": {"input": "hi", "max_output_tokens": 40, "store": False},
    "/v1/messages": HELLO | {"model": "toy", "max_tokens": 40},
    "/api/chat": HELLO | {"options": {"num_predict": 40}},
    "/completion": {"prompt": "hi", "n_predict": 40},
}


@pytest.mark.parametrize("path", ASKS)
def test_a_line_ends_where_it_ends(client, server, path):
    tokenizer = server.state.tokenizer
    said = tokenizer.encode(TEXT, add_bos=False, parse_special=False)
    body = ASKS[path] | {"stream": True}
    n_prompt = 3 if "prompt" in body else 6
    server.runner.script = Script([said], min(tokenizer.eos_ids), n_prompt)
    try:
        with client.stream("POST", path, json=body) as response:
            lines = "".join(response.iter_text()).splitlines()  # as httpx' iter_lines does
    finally:
        server.runner.script = None
    assert all(line.startswith(("{", "data: ", "event: ")) for line in lines if line)
    texts = [line.removeprefix("data: ") for line in lines]
    values = [json.loads(text) for text in texts if text.startswith("{")]
    said = "".join(text for text in strings(values) if len(text) == 1)
    assert TEXT in said, "each character comes by itself"


def strings(value):
    """All texts in some JSON, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings(item)
