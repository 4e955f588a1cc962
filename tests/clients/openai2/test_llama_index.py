"""llama-index with its class for servers like OpenAI's: chat, completions, tools streamed."""

from typing import Literal

import openai
import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [ChatMessage(role="user", content="Tell me about the sea.")]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Rome"]


def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def llm(base_url, model):
    return OpenAILike(
        model=model,
        api_base=base_url,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=True,
        context_window=512,
        max_tokens=80,
        temperature=0,
        max_retries=0,
    )


def test_chat_whole_and_streamed(llm):
    whole = llm.chat(MESSAGES, max_tokens=8).message.content
    *_, last = llm.stream_chat(MESSAGES, max_tokens=8)
    assert last.message.content == whole


def test_completions_whole_and_streamed(llm):
    llm.is_chat_model = False
    whole = llm.complete("The sea", max_tokens=8).text
    *_, last = llm.stream_complete("The sea", max_tokens=8)
    assert last.text == whole


def test_tools_whole_and_streamed(llm):
    tool = FunctionTool.from_defaults(weather)
    ask = {"tools": [tool], "chat_history": MESSAGES, "tool_required": True}
    whole = llm.chat_with_tools(**ask)
    [call] = llm.get_tool_calls_from_response(whole)
    *_, last = llm.stream_chat_with_tools(**ask)
    [streamed] = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)
    assert tool(**streamed.tool_kwargs).content.startswith("sunny in ")


def test_a_tool_is_predicted_called_and_its_result_said(llm):
    tool = FunctionTool.from_defaults(weather)
    answer = llm.predict_and_call([tool], user_msg="Tell me.", tool_required=True)
    assert str(answer).startswith("sunny in ")


def test_a_structured_answer(llm):
    answer = llm.as_structured_llm(Weather).chat(MESSAGES)
    assert isinstance(answer.raw, Weather)


def test_errors_are_the_sdks_own(llm):
    with pytest.raises(openai.BadRequestError) as caught:
        llm.chat([ChatMessage(role="user", content="sea " * 900)])
    assert caught.value.code == "context_length_exceeded"
