"""Bodies of every endpoint, sent to the application around a toy model: none is a server error."""

import asyncio
import atexit
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from lanewise.api.app import create_app
from lanewise.api.endpoints.table import ENDPOINTS
from lanewise.api.http.limits import Hold, RequestMemory
from lanewise.api.http.web_pages import WebPages
from lanewise.api.shared.budgets import TextBudgets
from lanewise.api.shared.state import Phase
from lanewise.text.chat_template import ChatTemplate
from tests.fuzz.json_mutation import mutate_json
from toy_server import CONFIG, make_engine, toy_state
from toy_tokenizer import toy_tokenizer

PATHS = [endpoint.path for endpoint in ENDPOINTS if endpoint.body is not None]
LINES = ("/api/chat", "/api/generate", "/api/pull")  # where streams are lines of JSON
# A busy, slow or stopped server says so; anything else of 500 and above is its mistake.
ACCEPTED = {200, 400, 403, 404, 413, 415, 422, 429, 501, 503, 504, 529}
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}

# Short, for contexts are; of a family that thinks and calls tools.
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}<|assistant|>"
    "{# <tool_call> </think> #}"
)
GAP = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
OLLAMA_CALL = {"function": {"name": "look", "arguments": {"at": "x"}}}


@dataclass
class Application:
    """The application and the loop that it runs in."""

    loop: asyncio.AbstractEventLoop
    app: Any
    logged: list[logging.LogRecord]


@cache
def application() -> Application:
    """One for all inputs: what one leaves behind, the next may find."""
    config = replace(CONFIG, max_model_len=96, max_queued_requests=64, max_draft=4)
    engine, _ = make_engine(config, more_special=GAP)
    engine.start()
    state = toy_state(
        engine,
        toy_tokenizer(GAP),
        chat_template=ChatTemplate({"default": TEMPLATE}),
        max_body_bytes=1 << 20,
        budgets=TextBudgets(grammar_timeout_s=0.5, template_timeout_s=0.2),
    )
    state.phase = Phase.READY
    logged: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = logged.append  # type: ignore[method-assign]
    logging.getLogger("lanewise").addHandler(handler)
    loop = asyncio.new_event_loop()

    def close() -> None:
        loop.run_until_complete(state.sandbox.close())
        engine.stop()

    atexit.register(close)
    return Application(loop, create_app(state, WebPages(host="", has_keys=True)), logged)


async def _post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the whole answer."""
    sent: list[dict[str, Any]] = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await asyncio.Event().wait()  # the client stays until it is answered
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "hold": Hold(RequestMemory(1 << 24)),
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def one_input(data: bytes) -> None:
    """The first byte says where the others are sent."""
    application_ = application()
    path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
    application_.logged.clear()
    posted = _post(application_.app, path, data[1:])
    status, answer = application_.loop.run_until_complete(asyncio.wait_for(posted, 60))
    assert not application_.logged, [record.getMessage() for record in application_.logged]
    assert status in ACCEPTED, (status, answer)
    if answer.startswith(b"data: "):
        events = answer.decode().split("\n\n")
        if path in ("/completion", "/infill"):
            assert '"stop":true' in events[-2] or '"error"' in events[-2], events[-2:]
            return
        assert events[-2:] == ["data: [DONE]", ""] or '"error"' in events[-2], events[-2:]
        events = [event.removeprefix("data: ") for event in events[:-2]]
        assert all(isinstance(json.loads(event), dict) for event in events if event)
    elif answer.startswith(b"event: message_start"):
        names = [event.partition("\n")[0] for event in answer.decode().split("\n\n")]
        assert names[-2:] in (["event: message_stop", ""], ["event: error", ""]), names
    elif path in LINES and status == 200:
        lines = [json.loads(line) for line in answer.decode().splitlines()]
        assert lines[-1].keys() & {"done", "error", "status"}, lines[-1]
        assert all(line["done"] is False for line in lines[:-1])
    else:
        found = json.loads(answer)
        told = status == 200 or found["error"]
        assert told if path.startswith("/api/") else told is True or told["message"], found


def seeds(_folder: Path) -> Iterator[bytes]:
    """A request for each feature."""
    hello = [{"role": "user", "content": "Hello"}]
    chat = {"messages": hello, "max_tokens": 4}
    part = {"type": "text", "text": "the"}
    claude = {**chat, "model": "toy"}
    thought = {"type": "thinking", "thinking": "r", "signature": "s"}
    use = {"type": "tool_use", "id": "c", "name": "look", "input": {"at": "x"}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [part], "is_error": True}
    schema = {"type": "json_schema", "schema": TOOL["function"]["parameters"]}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
    named = {"type": "function", "function": {"name": "look"}}
    long = [{"role": role, "content": "x" * 30} for role in ("user", "assistant", "user") * 2]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": long, "truncation": "auto", "max_output_tokens": 2}),
        ("/v1/completions", {"prompt": "the", "max_tokens": 3, "seed": 1, "logprobs": 2}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2, "n": 2, "best_of": 3}),
        ("/v1/completions", {"prompt": [1, 2, 3], "echo": True, "stop": ["a", "\n"], "top_k": 5}),
        (
            "/v1/completions",
            {"prompt": "x", "stream": True, "logit_bias": {"5": -100}, "min_p": 0.1},
        ),
        ("/v1/completions", {"prompt": [[1], [2]], "max_tokens": 1, "allowed_token_ids": [1, 2]}),
        ("/v1/completions", {"prompt": "x", "guided_choice": ["yes", "no"], "temperature": 0}),
        ("/v1/completions", {"prompt": "x", "guided_regex": "[ab]+c", "max_tokens": 8}),
        ("/v1/completions", {"prompt": "x", "guided_grammar": 'start: "a" | "b"'}),
        ("/v1/completions", {"prompt": ["x", "y"], "suffix": "z", "max_tokens": 3}),
        (
            "/v1/completions",
            {"prompt": "xyz", "bad_words": ["a", "b c"], "truncate_prompt_tokens": 2, "n": 2},
        ),
        ("/v1/completions", {"prompt": "xyz", "prompt_logprobs": 2, "echo": True, "logprobs": 1}),
        (
            "/v1/chat/completions",
            {**chat, "prediction": {"type": "content", "content": "the"}, "bad_words": ["the"]},
        ),
        (
            "/v1/chat/completions",
            {
                **chat,
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [named]},
                },
            },
        ),
        ("/v1/chat/completions", chat),
        (
            "/v1/chat/completions",
            {**chat, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True},
        ),
        ("/v1/chat/completions", {**chat, "tools": [TOOL], "tool_choice": "required"}),
        ("/v1/chat/completions", {**chat, "tools": [TOOL], "stream": True, "top_p": 0.5}),
        ("/v1/chat/completions", {**chat, "response_format": {"type": "json_object"}}),
        (
            "/v1/chat/completions",
            {
                **chat,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": TOOL["function"]["parameters"]},
                },
            },
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "system", "content": [part, part]},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "content": "x", "tool_call_id": "c"},
                    {"role": "assistant", "content": "So", "reasoning": "r"},
                ],
                "continue_final_message": True,
                "add_generation_prompt": False,
                "max_completion_tokens": 2,
            },
        ),
        ("/v1/messages", {**claude, "stream": True, "stop_sequences": ["a"], "top_k": 3}),
        (
            "/v1/messages",
            {
                **claude,
                "messages": [
                    *hello,
                    {"role": "assistant", "content": [thought, part, use]},
                    {"role": "user", "content": [result, part]},
                    {"role": "assistant", "content": "So"},
                ],
                "system": [{**part, "cache_control": {"type": "ephemeral"}}],
                "tools": [{"name": "look", "input_schema": TOOL["function"]["parameters"]}],
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "thinking": {"type": "enabled", "budget_tokens": 2},
                "output_config": {"effort": "low"},
            },
        ),
        ("/v1/messages/count_tokens", {**claude, "output_format": schema, "system": "x"}),
        ("/api/chat", {"messages": hello, "options": {"num_predict": 4, "top_k": 3.0}}),
        (
            "/api/chat",
            {
                "messages": [
                    *hello,
                    {"role": "assistant", "thinking": "r", "tool_calls": [OLLAMA_CALL]},
                    {"role": "tool", "content": "x", "tool_name": "look"},
                ],
                "tools": [TOOL],
                "think": "low",
                "stream": False,
            },
        ),
        ("/api/chat", {"messages": hello, "format": TOOL["function"]["parameters"]}),
        ("/api/generate", {"prompt": "x", "system": "y", "format": "json", "logprobs": True}),
        ("/api/generate", {"prompt": "x", "raw": True, "options": {"num_ctx": 9, "stop": "a"}}),
        ("/api/generate", {"model": "toy:latest", "keep_alive": "5m"}),
        ("/api/show", {"model": "toy"}),
        ("/api/pull", {"name": "toy"}),
        ("/completion", {"prompt": "x", "n_predict": 3, "n_probs": 2, "stream": True}),
        (
            "/completion",
            {
                "prompt": ["x", [1, 2], {"prompt_string": "y"}],
                "n_predict": 2,
                "n_cmpl": 2,
                "logit_bias": [[5, -1.5], ["6", False]],
                "timings_per_token": True,
            },
        ),
        ("/completion", {"prompt": "x", "grammar": 'root ::= "a" [b-c]+', "n_predict": 4}),
        ("/completion", {"prompt": "x", "json_schema": {"enum": [1]}, "stop": ["a"]}),
        ("/infill", {"input_prefix": "x", "input_suffix": "y", "n_predict": 2, "stream": True}),
        (
            "/infill",
            {
                "input_prefix": "",
                "input_suffix": "y",
                "prompt": "z",
                "n_predict": 2,
                "input_extra": [{"text": "a" * 90, "filename": "b"}, {"text": ""}],
            },
        ),
        ("/api/generate", {"prompt": "x", "suffix": "y", "options": {"num_predict": 2}}),
        ("/apply-template", {"messages": hello, "tools": [TOOL], "add_generation_prompt": False}),
        ("/tokenize", {"content": "Hé </s>", "with_pieces": True, "parse_special": False}),
        ("/tokenize", {"prompt": "Hello </s>", "return_token_strs": True}),
        ("/tokenize", {"messages": hello, "chat_template_kwargs": {"x": 1}, "tools": [TOOL]}),
        ("/detokenize", {"tokens": [1, 2, 300, 260]}),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}),
        ("/v1/unload_lora_adapter", {"lora_name": "a"}),
    ]
    for path, body in requests:
        yield bytes([PATHS.index(path)]) + json.dumps(body).encode()


def mutate(data: bytes, random: Random) -> bytes:
    """One value of a body."""
    return data[:1] + mutate_json(data[1:], random)


def words() -> Iterator[bytes]:
    """The fields that there are, and values at the ends of ranges."""
    from pydantic import BaseModel

    names = set()
    for endpoint in ENDPOINTS:
        if endpoint.body is not None and issubclass(endpoint.body, BaseModel):
            names |= {field.alias or name for name, field in endpoint.body.model_fields.items()}
            names |= set(getattr(endpoint.body, "refused", ()))
    yield from (f'"{name}":'.encode() for name in sorted(names))
    for value in ("null", "true", "-1", "0", "1e308", "5e-324", "[]", "{}", '""', "4294967295"):
        yield value.encode()
    for value in ('"\\ud83d"', '"\\u0000"', "18446744073709551615", '"$ref"', '"required"'):
        yield value.encode()
