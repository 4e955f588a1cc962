"""Ollama's own package: what is served, chat and generate, calls, forms, its errors."""

import json

import ollama
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def weather(city: str) -> str:
    """The weather.

    Args:
        city: of this city

    Returns:
        str: what it is like
    """
    return f"sunny in {city}"


@pytest.fixture(scope="module")
def client(url):
    return ollama.Client(host=url)


def test_models(client, model):
    [found] = client.list().models
    assert found.model.removesuffix(":latest") == model
    assert client.show(model).details.quantization_level


def test_chat_whole_and_streamed(client, model):
    ask = {"model": model, "messages": MESSAGES, "options": {"num_predict": 8, "temperature": 0}}
    whole = client.chat(**ask)
    parts = list(client.chat(**ask, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count == 8
    assert whole.done_reason == "length"


def test_generate_whole_and_streamed(client, model):
    ask = {"model": model, "prompt": "The sea", "options": {"num_predict": 8, "temperature": 0}}
    whole = client.generate(**ask).response
    assert "".join(part.response for part in client.generate(**ask, stream=True)) == whole


@pytest.mark.parametrize("stream", [False, True])
def test_a_form(client, model, stream):
    ask = {"model": model, "messages": MESSAGES, "format": SCHEMA}
    answers = client.chat(**ask, stream=stream)
    parts = list(answers) if stream else [answers]
    said = "".join(part.message.content for part in parts)
    assert json.loads(said)["city"] in ("Paris", "Rome")


def test_functions_are_offered_as_tools_and_results_taken(client, model):
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    history = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": weather("Rome")},
    ]
    answer = client.chat(model, history, tools=[weather], options={"num_predict": 4})
    assert answer.eval_count <= 4


def test_errors_are_the_packages_own(client):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("another", MESSAGES)
    assert caught.value.status_code == 404
    assert "another" in caught.value.error
