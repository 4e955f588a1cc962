"""Harmony from a model's files to the client: its template, its tokens, its ends."""

import json

import openai
import pytest
from tokenizers import AddedToken, Tokenizer

from lanewise.text.answers.harmony import TOKENS
from serving import lanewise_server
from tiny_models import tiny_model, write_hf

pytestmark = [pytest.mark.e2e, pytest.mark.native]

# As gpt-oss has it, as far as it matters here; analysis is what it is known by.
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "<|start|>assistant{# <|channel|>analysis #}"
)
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
DIGITS = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [123, 456]}}}


@pytest.fixture(scope="module")
def sdk(tmp_path_factory):
    folder = write_hf(tiny_model("llama2"), tmp_path_factory.mktemp("harmony") / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    changes = {
        "tokenizer_config.json": {"eos_token": "<|return|>", "chat_template": TEMPLATE},
        "generation_config.json": {"eos_token_id": tokenizer.token_to_id("<|return|>")},
    }
    for name, change in changes.items():
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(found | change))
    with (
        lanewise_server(str(folder), "--threads", "1") as url,
        openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as sdk,
    ):
        yield sdk


def answers(sdk, **ask):
    """Reasoning, content, calls and reason, streamed as they are whole."""
    messages = [{"role": "user", "content": "hi"}]
    ask = {"model": "model", "messages": messages, "max_tokens": 100, "temperature": 1.5, **ask}
    whole = sdk.chat.completions.create(**ask).choices[0]
    parts = ["", "", ""]
    for event in sdk.chat.completions.create(**ask, stream=True):
        delta, reason = event.choices[0].delta, event.choices[0].finish_reason
        calls = delta.tool_calls or ()
        new = (delta.model_extra or {}).get("reasoning_content"), delta.content
        new += ("".join(call.function.arguments for call in calls),)
        parts = [text + (more or "") for text, more in zip(parts, new, strict=True)]
    calls = [call.function.arguments for call in whole.message.tool_calls or ()]
    extra = whole.message.model_extra or {}
    assert parts == [
        extra.get("reasoning_content", ""),
        whole.message.content or "",
        "".join(calls),
    ]
    assert reason == whole.finish_reason
    assert not any(token in text for token in TOKENS for text in parts)
    return *parts, reason


def test_reasoning_content_and_calls(sdk):
    seen = [0, 0, 0]
    for seed in range(8):
        free = answers(sdk, seed=seed, tools=TOOLS)
        call = answers(sdk, seed=seed, tools=TOOLS, tool_choice="required")
        if call[3] == "tool_calls":
            assert json.loads(call[2]).keys() <= {"n"}
        form = answers(sdk, seed=seed, response_format=DIGITS)
        assert form[1] in ("123", "456") or form[3] == "length"
        for parts in (free, call, form):
            seen = [n + bool(text) for n, text in zip(seen, parts, strict=False)]
    assert all(seen), seen
