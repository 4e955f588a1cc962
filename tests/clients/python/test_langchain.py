"""langchain-openai: chat, streaming, tools, structured answers, and an overflow that it knows."""

from typing import Literal

import pytest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

QUESTION = "Tell me about the sea."


@tool
def weather(city: Literal["Paris", "Rome"], days: Literal[1, 2, 3]) -> str:
    """The weather of a city."""
    return f"{city}: sunny for {days} days"


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]
    sunny: bool


@pytest.fixture(scope="module")
def settings(base_url, model):
    return {
        "base_url": base_url,
        "api_key": "none",
        "model": model,
        "max_retries": 0,
        "temperature": 0,
        "max_tokens": 80,
    }


@pytest.fixture(scope="module")
def chat(settings):
    return ChatOpenAI(**settings, stream_usage=True)


def joined(chunks) -> AIMessageChunk:
    first, *rest = chunks
    for chunk in rest:
        first = first + chunk
    return first


def test_chat_whole_and_streamed(chat):
    whole = chat.invoke(QUESTION, max_tokens=8)
    streamed = joined(chat.stream(QUESTION, max_tokens=8))
    assert streamed.content == whole.content
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] == 8


def test_completions_whole_and_streamed(settings):
    text = OpenAI(**settings | {"max_tokens": 6})
    assert "".join(text.stream("The sea")) == text.invoke("The sea")


def test_tools_whole_and_streamed(chat):
    bound = chat.bind_tools([weather], tool_choice="any")
    [call] = bound.invoke(QUESTION).tool_calls
    [streamed] = joined(bound.stream(QUESTION)).tool_calls
    assert {**streamed, "id": ""} == {**call, "id": ""}
    assert weather.invoke(call["args"]).endswith("days")


def test_the_result_of_a_tool_goes_back(chat):
    asked = chat.bind_tools([weather], tool_choice="weather").invoke(QUESTION)
    [call] = asked.tool_calls
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    history = [HumanMessage(QUESTION), asked, result]
    answer = chat.bind_tools([weather], tool_choice="none").invoke(history, max_tokens=4)
    assert answer.usage_metadata["output_tokens"] <= 4
    assert not answer.tool_calls


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answers(chat, method):
    options = {"strict": True} if method == "function_calling" else {}
    asked = chat.with_structured_output(Weather, method=method, **options)
    assert isinstance(asked.invoke(QUESTION), Weather)


def test_an_overflow_is_recognised(chat):
    with pytest.raises(ContextOverflowError):
        chat.invoke("sea " * 900)
