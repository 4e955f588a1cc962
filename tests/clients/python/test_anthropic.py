"""The anthropic package: messages whole and streamed, tools, counts, errors as its own classes."""

import anthropic
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
GREEDY = {"extra_body": {"temperature": 0}}  # newer versions have no argument for it
FORCED = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}


@pytest.fixture(scope="module")
def sdk(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as sdk:
        yield sdk


def test_messages_whole_and_streamed(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 8, **GREEDY}
    whole = sdk.messages.create(**ask, system="Be brief.")
    with sdk.messages.stream(**ask, system="Be brief.") as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 8


def test_a_stop_sequence_is_named(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "max_tokens": 40, **GREEDY}
    answer = sdk.messages.create(**ask, stop_sequences=[" "])
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence == " "


def test_a_tool_whole_and_streamed_and_its_result(sdk, model):
    ask = {"model": model, "messages": MESSAGES, "tools": [TOOL], "tool_choice": FORCED}
    ask |= {"max_tokens": 80, **GREEDY}
    whole = sdk.messages.create(**ask)
    assert whole.stop_reason == "tool_use"
    [call] = [block for block in whole.content if block.type == "tool_use"]
    assert call.input["city"] in ("Paris", "Rome")
    with sdk.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    [streamed] = [block for block in final.content if block.type == "tool_use"]
    assert (streamed.name, streamed.input) == (call.name, call.input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result]},
    ]
    after = sdk.messages.create(model=model, messages=history, tools=[TOOL], max_tokens=4)
    assert after.usage.output_tokens <= 4


def test_counts_are_those_of_messages(sdk, model):
    counted = sdk.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    usage = sdk.messages.create(model=model, messages=MESSAGES, max_tokens=1).usage
    read = usage.cache_read_input_tokens or 0
    assert counted == usage.input_tokens + read + (usage.cache_creation_input_tokens or 0)


@pytest.mark.parametrize(
    ("changes", "error", "kind"),
    [
        ({"model": "another"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": "sea " * 900}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
    ids=["model", "none", "length"],
)
def test_errors_are_the_packages_own(sdk, model, changes, error, kind):
    with pytest.raises(error) as caught:
        sdk.messages.create(**({"model": model, "messages": MESSAGES, "max_tokens": 4} | changes))
    assert caught.value.body["error"]["type"] == kind
