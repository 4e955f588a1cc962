"""openai-agents with its default backend, which is /v1/responses: text, tools, typed answers."""

import asyncio
from typing import Literal

import openai
import pytest
from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from agents.models.openai_provider import OpenAIProvider
from pydantic import BaseModel

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

QUESTION = "Tell me about the sea."


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


@pytest.fixture
def run(base_url, model):
    """Runs an agent with these settings, streamed or not."""

    def run(stream=False, input=QUESTION, settings=None, **agent):
        async def answered():
            async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
                provider = OpenAIProvider(openai_client=client)
                config = RunConfig(model_provider=provider, tracing_disabled=True)
                ends = {"stop": [" "]}  # which the bundled model seldom does by itself
                known = ModelSettings(temperature=0, extra_body=ends).resolve(settings)
                asked = Agent(name="sea", model=model, model_settings=known, **agent)
                if not stream:
                    return await Runner.run(asked, input, run_config=config), []
                result = Runner.run_streamed(asked, input, run_config=config)
                return result, [event async for event in result.stream_events()]

        return asyncio.run(answered())

    return run


def test_text_whole_and_streamed(run):
    whole, _ = run()
    streamed, events = run(stream=True)
    said = "".join(
        event.data.delta
        for event in events
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    )
    assert said == streamed.final_output == whole.final_output


def test_a_typed_answer(run):
    result, _ = run(output_type=Weather, settings=ModelSettings(extra_body={"stop": []}))
    assert isinstance(result.final_output, Weather)


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_run_and_its_result_goes_back(run, stream):
    asked = []

    @function_tool
    def weather(city: Literal["Paris", "Rome"]) -> str:
        asked.append(city)
        return "sunny"

    # The tool is required in the first turn only: the package sees to that itself.
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    result, _ = run(stream, tools=[weather], settings=settings)
    assert asked
    assert "function_call_output" in [
        item["type"] for item in result.to_input_list() if "type" in item
    ]


def test_errors_are_the_sdks_own(run):
    with pytest.raises(openai.BadRequestError):
        run(input="sea " * 900)
