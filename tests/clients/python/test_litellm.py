"""litellm: chat and completions, streamed tools, and errors that its routers act on."""

import json

import litellm
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def ask(base_url, model):
    """Asks through the provider for servers like OpenAI's, as many of its users do."""

    def ask(provider="hosted_vllm", function=litellm.completion, **fields):
        where = {"model": f"{provider}/{model}", "api_base": base_url, "api_key": "none"}
        return function(**where, num_retries=0, temperature=0, **fields)

    return ask


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_chat_whole_and_streamed(ask, provider):
    whole = ask(provider, messages=MESSAGES, max_tokens=8)
    chunks = ask(provider, messages=MESSAGES, max_tokens=8, stream=True)
    built = litellm.stream_chunk_builder(list(chunks), messages=MESSAGES)
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8


def test_completions(ask):
    answer = ask("text-completion-openai", litellm.text_completion, prompt="The sea", max_tokens=5)
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 5


def test_tools_whole_and_streamed(ask):
    fields = {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required", "max_tokens": 80}
    fields["parallel_tool_calls"] = False
    [call] = ask(**fields).choices[0].message.tool_calls
    built = litellm.stream_chunk_builder(list(ask(**fields, stream=True)), messages=MESSAGES)
    [streamed] = built.choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_an_overflow_is_its_own_error(ask, provider):
    long = [{"role": "user", "content": "sea " * 900}]
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(provider, messages=long, max_tokens=8)
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(provider, messages=long, max_tokens=8, stream=True)


def test_an_unknown_model_is_its_own_error(ask, base_url):
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(
            model="openai/another", api_base=base_url, api_key="none", messages=MESSAGES
        )
