"""A model calls a tool with its arguments in an order of its own, whatever the dialect."""

import json

import pytest

from toy import Script

HERMES = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function | tojson }}{% endfor %}\n{% endfor %}assistant:"
)
SCHEMA = {
    "type": "object",
    "properties": {"content": {"type": "string"}, "path": {"type": "string"}},
    "required": ["content", "path"],
}
SAID = '{"path": "a.txt", "content": "all of it"}'
HELLO = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "write", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
DIALECTS = {
    "/v1/chat/completions": {"messages": HELLO, "tools": [CHAT_TOOL]},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "model": "toy",
        "messages": HELLO,
        "tools": [{"name": "write", "input_schema": SCHEMA}],
    },
    "/api/chat": {"messages": HELLO, "tools": [CHAT_TOOL], "stream": False},
}
LENGTHS = {
    "/v1/responses": {"max_output_tokens": 200},
    "/api/chat": {"options": {"num_predict": 200}},
}


@pytest.mark.parametrize("path", DIALECTS)
def test_arguments_keep_the_order_that_the_model_gave_them(server, tokenizer, template, path):
    template(HERMES)
    body = {**DIALECTS[path], **LENGTHS.get(path, {"max_tokens": 200})}
    usage = server.client.post(path, json=body).json()
    usage = usage.get("usage", usage)
    counts = ("prompt_tokens", "input_tokens", "prompt_eval_count", "cache_read_input_tokens")
    n_prompt = sum(usage.get(name, 0) for name in counts)
    call = f'<tool_call>\n{{"name": "write", "arguments": {SAID}}}\n</tool_call>'
    said = tokenizer.encode(call, add_bos=False, parse_special=True)
    server.runner.script = Script([said], min(tokenizer.eos_ids), n_prompt)
    answer = server.client.post(path, json=body).text
    found = json.dumps(SAID)[1:-1] if path.startswith(("/v1/chat", "/v1/resp")) else SAID
    assert found.replace(" ", "") in answer.replace(" ", ""), answer
