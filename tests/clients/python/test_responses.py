"""The openai package and langchain-openai over /v1/responses."""

from typing import Literal

import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

QUESTION = "Tell me about the sea."


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def sdk(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def chat(base_url, model):
    settings = {"base_url": base_url, "api_key": "none", "max_retries": 0, "temperature": 0}
    return ChatOpenAI(model=model, use_responses_api=True, **settings)


def test_text_whole_and_streamed(sdk, model):
    ask = {"model": model, "input": QUESTION, "instructions": "Be brief.", "temperature": 0}
    whole = sdk.responses.create(**ask, max_output_tokens=16)
    with sdk.responses.stream(**ask, max_output_tokens=16) as stream:
        events = list(stream)
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = events[-1].response
    assert final.output_text == whole.output_text == said
    assert final.status == whole.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 16


def test_a_conversation_goes_on_from_a_kept_answer(sdk, model):
    ask = {"model": model, "max_output_tokens": 16}
    first = sdk.responses.create(**ask, input=QUESTION)
    second = sdk.responses.create(**ask, input="And then?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + 16
    with pytest.raises(openai.APIStatusError) as caught:
        sdk.responses.create(**ask, input=QUESTION, previous_response_id="resp_unknown")
    assert caught.value.status_code in (400, 404)


def test_an_answer_is_parsed(sdk, model):
    ask = {"model": model, "input": QUESTION, "text_format": Weather, "max_output_tokens": 60}
    assert sdk.responses.parse(**ask).output_parsed.city in ("Paris", "Rome")


def test_a_tool_whole_and_streamed_and_its_result(sdk, model):
    offered = openai.pydantic_function_tool(Weather, name="weather")["function"]
    ask = {"model": model, "tools": [{"type": "function", **offered}], "tool_choice": "required"}
    ask |= {"temperature": 0, "parallel_tool_calls": False, "max_output_tokens": 80}
    whole = sdk.responses.parse(**ask, input=QUESTION)
    [call] = [item for item in whole.output if item.type == "function_call"]
    assert call.parsed_arguments["city"] in ("Paris", "Rome")
    with sdk.responses.stream(**ask, input=QUESTION) as stream:
        final = stream.get_final_response()
    [streamed] = [item for item in final.output if item.type == "function_call"]
    assert streamed.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = {**ask, "tool_choice": "none", "max_output_tokens": 16}
    answer = sdk.responses.create(**after, input=[result], previous_response_id=whole.id)
    assert answer.output_text


def test_errors_are_the_sdks_own(sdk, model):
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="another", input=QUESTION)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.create(model=model, input="sea " * 900)
    assert caught.value.code == "context_length_exceeded"


def test_langchain_whole_and_streamed(chat):
    whole = chat.invoke(QUESTION, max_tokens=16)
    chunks = list(chat.stream(QUESTION, max_tokens=16))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert whole.usage_metadata["output_tokens"] == 16


def test_langchain_calls_tools_and_gives_results_back(chat):
    bound = chat.bind_tools([weather], tool_choice="any", parallel_tool_calls=False)
    asked = bound.invoke(QUESTION, max_tokens=80)
    first, *rest = bound.stream(QUESTION, max_tokens=80)
    for chunk in rest:
        first = first + chunk
    [call], [streamed] = asked.tool_calls, first.tool_calls
    assert streamed["args"] == call["args"]
    history = [("user", QUESTION), asked, weather.invoke(call)]
    answer = chat.bind_tools([weather], tool_choice="none").invoke(history, max_tokens=16)
    assert answer.text


def test_langchain_parses(chat):
    asked = chat.with_structured_output(Weather, method="json_schema")
    assert isinstance(asked.invoke(QUESTION), Weather)
