"""Requests that hurt a careless server, by kind: whole HTTP bodies, each with its right answers."""

import json
from functools import partial
from typing import Any

from loadtests.hostile.grammars import RECURSION, SLOW_GRAMMARS
from loadtests.hostile.making import (
    ASK,
    CHAT,
    COMPLETION,
    DEEP,
    EITHER,
    REFUSED,
    Hostile,
    called,
    chat,
    completion,
    tool,
    with_schema,
)

STOPS = (
    Hostile(
        "100,000 stop strings",
        COMPLETION,
        lambda: completion(stop=[f"s{i}" for i in range(DEEP)]),
        (400,),
    ),
    Hostile(
        "a stop string of 7 MB", COMPLETION, lambda: completion(stop=["ab" * 3_500_000]), EITHER
    ),
    Hostile(
        "1,000 stop strings of 7 kB",
        CHAT,
        lambda: chat(stop=["ab" * 3_500 + str(i) for i in range(1_000)]),
        EITHER,
    ),
    Hostile(
        "a stop string that nearly comes, always",
        COMPLETION,
        lambda: completion(stop=[" " * 100_000 + "x"]),
        EITHER,
    ),
    Hostile(
        "500,000 stop tokens",
        COMPLETION,
        lambda: completion(stop_token_ids=[i % 900 for i in range(500_000)]),
        EITHER,
    ),
    Hostile(
        "500,000 allowed tokens",
        COMPLETION,
        lambda: completion(allowed_token_ids=[i % 900 for i in range(500_000)]),
        EITHER,
    ),
    Hostile(
        "a bias for each of 200,000 tokens",
        COMPLETION,
        lambda: completion(logit_bias={str(i): 1 for i in range(200_000)}),
        EITHER,
    ),
    Hostile(
        "a cache salt of 7 MB", COMPLETION, lambda: completion(cache_salt="s" * 7_000_000), EITHER
    ),
)


def _numbers_json(size: int) -> str:
    return '{"a": [' + ", ".join(str(i) for i in range(size)) + "]}"


LOOP_WORK = (
    Hostile(
        "150,000 empty messages",
        CHAT,
        lambda: chat(messages=[{"role": "user", "content": ""}] * 150_000),
        EITHER,
    ),
    Hostile(
        "150,000 wrong messages",
        CHAT,
        lambda: chat(messages=[{"role": "nobody"}] * 150_000),
        REFUSED,
    ),
    Hostile(
        "300,000 parts of one message",
        CHAT,
        lambda: chat(
            messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 200_000}]
        ),
        EITHER,
    ),
    Hostile(
        "128 tools of 55 kB",
        CHAT,
        lambda: chat(tools=[tool(i, description="d" * 55_000) for i in range(128)]),
        EITHER,
    ),
    Hostile(
        "a tool with 50,000 properties",
        CHAT,
        lambda: chat(
            tools=[
                tool(
                    0,
                    parameters={
                        "type": "object",
                        "properties": {f"p{i}": {"type": "string"} for i in range(50_000)},
                    },
                )
            ]
        ),
        EITHER,
    ),
    Hostile(
        "7 MB of arguments",
        CHAT,
        lambda: chat(messages=called(json.dumps({"a": "b" * 7_000_000}))),
        EITHER,
    ),
    Hostile(
        "7 MB of arguments in small values",
        CHAT,
        lambda: chat(messages=called(_numbers_json(800_000))),
        EITHER,
    ),
    Hostile(
        "50,000 calls in one message",
        CHAT,
        lambda: chat(
            messages=[
                *ASK,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                        }
                    ]
                    * 50_000,
                },
                *ASK,
            ]
        ),
        EITHER,
    ),
    Hostile(
        "7 MB of template variables",
        CHAT,
        lambda: chat(chat_template_kwargs={f"v{i}": i for i in range(400_000)}),
        EITHER,
    ),
    Hostile(
        "a message of 7 MB",
        CHAT,
        lambda: chat(messages=[{"role": "user", "content": "word " * 1_400_000}]),
        REFUSED,
    ),
    Hostile(
        "a message of one 7 MB word",
        CHAT,
        lambda: chat(messages=[{"role": "user", "content": "a" * 7_000_000}]),
        REFUSED,
    ),
    Hostile(
        "a prompt of 7 MB", COMPLETION, lambda: completion(prompt="word " * 1_400_000), REFUSED
    ),
    Hostile(
        "a prompt of 2,000,000 ids", COMPLETION, lambda: completion(prompt=[5] * 2_000_000), REFUSED
    ),
    Hostile("600,000 prompts", COMPLETION, lambda: completion(prompt=["a"] * 600_000), EITHER),
    Hostile(
        "the strings of a million tokens",
        "/tokenize",
        lambda: {"prompt": " a" * 10**6, "return_token_strs": True},
        EITHER,
    ),
    Hostile(
        "150,000 messages to count",
        "/tokenize",
        lambda: {"messages": [{"role": "user", "content": ""}] * 150_000},
        EITHER,
    ),
    Hostile(
        "two million tokens to text", "/detokenize", lambda: {"tokens": [5] * 2_000_000}, EITHER
    ),
    Hostile(
        "7 MB of unknown fields",
        COMPLETION,
        lambda: completion(**{f"unknown{i}": i for i in range(250_000)}),
        EITHER,
    ),
    Hostile(
        "a number of a million digits",
        COMPLETION,
        lambda: b'{"prompt": "a", "seed": ' + b"9" * 10**6 + b"}",
        (400,),
    ),
    Hostile(
        "a model's name of 7 MB", COMPLETION, lambda: completion(model="m" * 7_000_000), (400, 404)
    ),
)


def _number(field: str, value: str, accepted: tuple[int, ...] = EITHER) -> Hostile:
    # Written by hand: a JSON library has no such numbers.
    raw = f'{{"prompt": "The sea", "max_tokens": 4, "{field}": {value}}}'.encode()
    return Hostile(f"{field} {value[:30]}", COMPLETION, lambda: raw, accepted)


NUMBERS = (
    _number("repetition_penalty", "5e-324", (400,)),
    _number("repetition_penalty", "1e-40", (400,)),
    _number("repetition_penalty", "1e-30"),
    *(
        _number(f, v)
        for f in ("temperature", "top_p", "min_p")
        for v in ("5e-324", "1e-40", "1e-30")
    ),
    *(
        _number(f, v, (400,))
        for f in ("temperature", "top_p", "presence_penalty")
        for v in ("1e39", "1e309", "NaN", "Infinity", "-Infinity")
    ),
    *(
        _number(f, str(v))
        for f in (
            "top_k",
            "max_tokens",
            "n",
            "seed",
            "min_tokens",
            "priority",
            "best_of",
            "logprobs",
        )
        for v in (-1, 2**31 - 1, 2**31, 2**32 + 1, 2**63, 2**64, -(2**63) - 1, 10**400)
    ),
    _number("logit_bias", '{"1": 1e-45}'),
    _number("logit_bias", '{"1": 1e39}', (400,)),
    _number("logit_bias", '{"999999999": 1}', (400,)),
    _number("stop_token_ids", "[4294967295]"),
    _number("prompt", "[4294967295]", (400,)),
    _number("prompt", "[-1]", (400,)),
    _number("speculative.n_max", str(2**40)),
)


LOGGED = (
    Hostile(
        "a line break in a model's name",
        COMPLETION,
        lambda: completion(model="a\nINFO forged\r\nINFO forged"),
        (404,),
    ),
    Hostile(
        "a terminal's escapes in a model's name",
        COMPLETION,
        lambda: completion(model="\x1b[2J\x1b]0;forged\x07"),
        (404,),
    ),
    Hostile(
        "a line break in a tool's name",
        CHAT,
        lambda: chat(tools=[tool(0, name="a\nINFO forged")]),
        (400,),
    ),
    Hostile(
        "a line break in a schema",
        CHAT,
        lambda: with_schema({"type": "a\nINFO forged"}),
        (200, 400),  # what cannot be enforced is left out and told
    ),
    Hostile(
        "lone surrogates",
        COMPLETION,
        lambda: b'{"prompt": "\\ud83d", "max_tokens": 1, "model": "\\udc00"}',
        (400, 404),
    ),
)


def _adapter(path: str) -> dict[str, Any]:
    return {"lora_name": "forged", "lora_path": path}


ADAPTERS = tuple(
    Hostile(
        f"an adapter from {path!r}",
        "/v1/load_lora_adapter",
        partial(_adapter, path),
        (400, 401, 403, 404),
    )
    for path in ("/etc", "~root", "/proc/self", "/dev/zero", "../../../etc", "a\x00b", "/" * 4000)
)

TEMPLATES = (
    Hostile(
        "a template in the request",
        CHAT,
        lambda: chat(chat_template="{% for i in range(10**9) %}{% endfor %}"),
        EITHER,
    ),
    Hostile(
        "a template's variables that are not data",
        CHAT,
        lambda: chat(
            chat_template_kwargs={"messages": "x", "tools": 10**9, "add_generation_prompt": "y"}
        ),
        EITHER,
    ),
    Hostile(
        "a role of a megabyte",
        CHAT,
        lambda: chat(messages=[{"role": "r" * 10**6, "content": ""}]),
        (400,),
    ),
)

BODIES: dict[str, tuple[Hostile, ...]] = {
    "recursion": RECURSION,
    "slow grammars": SLOW_GRAMMARS,
    "stop strings": STOPS,
    "loop work": LOOP_WORK,
    "numbers": NUMBERS,
    "log lines": LOGGED,
    "adapters": ADAPTERS,
    "templates": TEMPLATES,
}
