"""The openai package: chat, completions, parsing, tools, logprobs, errors as its own classes."""

import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    days: int = pydantic.Field(ge=1, le=9)


@pytest.fixture(scope="module")
def sdk(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
        yield sdk


def test_models(sdk, model):
    assert [found.id for found in sdk.models.list()] == [model]
    assert sdk.models.retrieve(model).id == model


def test_chat_of_two_choices_with_logprobs_whole_and_streamed(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 6, "seed": 7}
    ask |= {"n": 2, "logprobs": True, "top_logprobs": 2}
    whole = sdk.chat.completions.create(**ask)
    assert [choice.finish_reason for choice in whole.choices] == ["length"] * 2
    texts, logprobs, usage = ["", ""], [[], []], None
    events = sdk.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    for event in events:
        usage = event.usage
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs:
                logprobs[choice.index] += choice.logprobs.content
    assert texts == [choice.message.content for choice in whole.choices]
    assert logprobs == [choice.logprobs.content for choice in whole.choices]
    assert [len(entries) for entries in logprobs] == [6, 6]
    assert usage.completion_tokens == whole.usage.completion_tokens == 12


def test_the_sdks_own_accumulator_makes_the_whole_answer_of_a_stream(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 200, "seed": 3, "stop": ["."]}
    whole = sdk.chat.completions.create(**ask).choices[0].message.content
    with sdk.chat.completions.stream(**ask) as stream:
        said = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert said == final.choices[0].message.content == whole


def test_completions_of_two_prompts(sdk, model):
    answer = sdk.completions.create(
        model=model, prompt=["The sea", "The old man"], max_tokens=4, n=2, logprobs=1
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(len(choice.logprobs.tokens) == 4 for choice in answer.choices)


def test_an_answer_is_parsed_into_a_model(sdk, model):
    parsed = sdk.chat.completions.parse(
        model=model, messages=MESSAGES, response_format=Weather, max_tokens=60
    )
    assert 1 <= parsed.choices[0].message.parsed.days <= 9


def test_a_cut_answer_is_the_sdks_length_error(sdk, model):
    with pytest.raises(openai.LengthFinishReasonError):
        sdk.chat.completions.parse(
            model=model, messages=MESSAGES, response_format=Weather, max_tokens=2
        )


def test_a_tool_call_whole_and_streamed(sdk, model):
    tool = openai.pydantic_function_tool(Weather, name="weather")
    ask = {"model": model, "messages": MESSAGES, "tools": [tool], "tool_choice": "required"}
    ask |= {"max_tokens": 90, "seed": 1, "temperature": 0, "parallel_tool_calls": False}
    [call] = sdk.chat.completions.parse(**ask).choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)
    with sdk.chat.completions.stream(**ask) as stream:
        deltas = "".join(
            event.arguments_delta
            for event in stream
            if event.type == "tool_calls.function.arguments.delta"
        )
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    [streamed] = final.message.tool_calls
    assert streamed.function.name == call.function.name == "weather"
    assert streamed.function.arguments == call.function.arguments
    assert json.loads(deltas) == call.function.parsed_arguments.model_dump()


def test_results_of_tools_are_taken(sdk, model):
    call = {"id": "call_1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Rome", "days": 1}'}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    tool = openai.pydantic_function_tool(Weather, name="weather")
    ask = {"model": model, "messages": history, "tools": [tool], "max_tokens": 3}
    assert sdk.chat.completions.create(**ask).usage.completion_tokens <= 3


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        ({"model": "another"}, openai.NotFoundError, "model_not_found"),
        (
            {"messages": [{"role": "user", "content": "sea " * 900}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"top_p": 7}, openai.BadRequestError, None),
    ],
    ids=["model", "length", "value"],
)
def test_errors_are_the_sdks_own(sdk, model, changes, error, code):
    with pytest.raises(error) as caught:
        sdk.chat.completions.create(**({"model": model, "messages": MESSAGES} | changes))
    assert caught.value.code == code
    assert caught.value.type == "invalid_request_error"


def test_what_is_not_there_is_an_error_of_the_sdk(sdk, model):
    with pytest.raises(openai.APIStatusError) as caught:
        sdk.images.generate(model=model, prompt="the sea")
    assert caught.value.status_code in (404, 501)


def test_the_asynchronous_client_leaves_a_stream(base_url, model):
    async def first_words() -> str:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
            ask = {"model": model, "prompt": "The sea", "max_tokens": 400}
            async with await sdk.completions.create(**ask, stream=True) as stream:
                async for event in stream:
                    return event.choices[0].text
        return ""

    assert asyncio.run(first_words())
