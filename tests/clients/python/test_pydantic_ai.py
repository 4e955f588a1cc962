"""pydantic-ai over chat completions: text, streams, typed answers and tools that it runs."""

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

QUESTION = "Tell me about the sea."


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    sunny: bool


@pytest.fixture
def chat(base_url, model):
    provider = OpenAIProvider(base_url=base_url, api_key="none")
    settings = {"temperature": 0.0, "max_tokens": 80}
    return OpenAIChatModel(model, provider=provider, settings=settings)


def test_text_whole_and_streamed(chat):
    async def streamed() -> str:
        async with Agent(chat).run_stream(QUESTION) as run:
            return [text async for text in run.stream_text(debounce_by=None)][-1]

    async def whole() -> str:
        return (await Agent(chat).run(QUESTION)).output

    assert asyncio.run(streamed()) == asyncio.run(whole())


@pytest.mark.parametrize("output", [NativeOutput, ToolOutput])
def test_typed_answers(chat, output):
    run = asyncio.run(Agent(chat, output_type=output(Weather)).run(QUESTION))
    assert isinstance(run.output, Weather)
    assert run.usage.output_tokens > 0


def test_a_tool_is_run_and_its_result_goes_back(chat):
    def first_a_call(context) -> dict:
        tool_choice = "required" if context.run_step == 1 else "none"
        return {"tool_choice": tool_choice, "parallel_tool_calls": False}

    agent = Agent(chat, model_settings=first_a_call)
    asked = []

    @agent.tool_plain
    def weather(city: Literal["Paris", "Rome"]) -> str:
        asked.append(city)
        return "sunny"

    run = asyncio.run(agent.run(QUESTION))
    assert asked
    assert run.output
    assert run.usage.requests == 2


def test_an_overflow_is_its_own_error(chat):
    with pytest.raises(ModelContextWindowExceededError) as caught:
        asyncio.run(Agent(chat).run("sea " * 900))
    assert caught.value.status_code == 400
