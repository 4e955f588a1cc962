"""The anthropic package: messages whole and streamed, tools, parsing, counting, typed errors.

Answers and events are checked against the package's own models, with nothing converted.
"""

import asyncio
import json
from typing import Literal

import anthropic
import pydantic
import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]},
            "days": {"type": "integer", "enum": [1, 2, 3]},
        },
        "required": ["city", "days"],
    },
}
EVENTS = pydantic.TypeAdapter(RawMessageStreamEvent)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]  # the package takes bounds of numbers out of a schema


@pytest.fixture(scope="module")
def sdk(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as sdk:
        yield sdk


def ask(model, **more):
    greedy = {"temperature": 0}  # a field that only older versions have as an argument
    return {"model": model, "messages": MESSAGES, "max_tokens": 20, "extra_body": greedy, **more}


def strictly(kind, made):
    """It is of this kind as it is, and without members that the package does not know."""
    data = made.to_dict()
    again = kind.model_validate(data, strict=True)
    assert not again.model_extra
    return again


def test_a_message_whole_and_streamed(sdk, model):
    whole = strictly(Message, sdk.messages.create(**ask(model)))
    assert (whole.stop_reason, whole.model, whole.usage.output_tokens) == ("max_tokens", model, 20)
    kinds = []
    for event in sdk.messages.create(**ask(model), stream=True):
        EVENTS.validate_python(event.to_dict(), strict=True)
        kinds.append(event.type)
    first, begin, *deltas, end, why, last = kinds
    assert (first, begin) == ("message_start", "content_block_start")
    assert set(deltas) == {"content_block_delta"}
    assert (end, why, last) == ("content_block_stop", "message_delta", "message_stop")
    with sdk.messages.stream(**ask(model)) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    usage = final.usage
    assert usage.output_tokens == 20
    assert usage.input_tokens + usage.cache_read_input_tokens == count(sdk, model)


def count(sdk, model, **more):
    counted = sdk.messages.count_tokens(model=model, messages=MESSAGES, **more)
    return strictly(MessageTokensCount, counted).input_tokens


def test_tokens_are_counted(sdk, model):
    alone = count(sdk, model)
    with_system = count(sdk, model, system=[{"type": "text", "text": "Be brief."}])
    assert 0 < alone < with_system < count(sdk, model, system="Be brief.", tools=[WEATHER])


def test_a_stop_sequence_is_told(sdk, model):
    made = sdk.messages.create(**ask(model, max_tokens=200, stop_sequences=["zzz", "."]))
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", ".")
    assert "." not in made.content[0].text


def test_an_answer_goes_on_with_what_is_there(sdk, model):
    messages = [*MESSAGES, {"role": "assistant", "content": "The sea is"}]
    made = sdk.messages.create(**ask(model, messages=messages))
    assert made.content[0].text.startswith(" ")


def test_a_tool_is_called_and_its_result_answered(sdk, model):
    tools = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}}
    whole = strictly(Message, sdk.messages.create(**ask(model, max_tokens=100, **tools)))
    (use,) = whole.content
    assert whole.stop_reason == "tool_use"
    Weather.model_validate(use.input)
    with sdk.messages.stream(**ask(model, max_tokens=100, **tools)) as stream:
        pieces = "".join(event.partial_json for event in stream if event.type == "input_json")
        (streamed,) = stream.get_final_message().content
    assert json.loads(pieces) == streamed.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "dry", "is_error": False}
    messages = [*MESSAGES, whole.to_param(), {"role": "user", "content": [result]}]
    after = sdk.messages.create(**ask(model, messages=messages, tools=[WEATHER]))
    assert after.usage.output_tokens > 0


def test_an_answer_is_parsed(sdk, model):
    made = sdk.messages.parse(**ask(model, max_tokens=100), output_format=Weather)
    assert isinstance(made.parsed_output, Weather)


def test_errors_are_its_own_classes(sdk, model):
    with pytest.raises(anthropic.NotFoundError) as found:
        sdk.messages.create(**ask("claude"))
    assert found.value.type == "not_found_error"
    assert found.value.request_id
    body = ErrorResponse.model_validate(found.value.body, strict=True)
    assert "claude" in body.error.message
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    with pytest.raises(anthropic.BadRequestError, match="this model reads text only"):
        sdk.messages.create(**ask(model, messages=[{"role": "user", "content": [image]}]))
    long = [{"role": "user", "content": "word " * 1000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 512"):
        sdk.messages.create(**ask(model, messages=long))
    made = sdk.messages.create(**ask(model, max_tokens=100_000, stop_sequences=["."]), timeout=60)
    assert made.stop_reason in ("stop_sequence", "model_context_window_exceeded")


def test_a_tool_of_the_makers_is_left_out_and_named(sdk, model):
    tool = {"type": "bash_20250124", "name": "bash"}
    answered = sdk.messages.with_raw_response.create(**ask(model, tools=[tool]))
    assert "bash" in answered.headers["x-lanewise-warning"]
    assert answered.parse().stop_reason == "max_tokens"


def test_the_asynchronous_client_leaves_a_stream(url, model):
    async def talk():
        sdk = anthropic.AsyncAnthropic(base_url=url, auth_token="none")
        async with sdk, sdk.messages.stream(**ask(model, max_tokens=300)) as stream:
            return await anext(aiter(stream.text_stream))

    assert asyncio.run(talk())
