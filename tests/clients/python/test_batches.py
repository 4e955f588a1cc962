"""Batches with the packages of OpenAI and Anthropic, and with LiteLLM: mixed requests, results."""

import io
import json
import time

import anthropic
import litellm
import openai
import pytest

from serving import SERVER_PYTHON, lanewise_server

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
COUNT = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("data"))
    with lanewise_server("--threads", "1", "--data-dir", folder, python=SERVER_PYTHON) as url:
        yield url


@pytest.fixture(scope="module")
def sdk(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def body(endpoint, i):
    ask = {"max_tokens": 4 + i % 9, "seed": i}
    if endpoint == COMPLETIONS:
        return ask | {"prompt": f"The sea of {i}"}
    return ask | {"messages": [{"role": "user", "content": f"Tell me about {i} seas."}]}


def lines(endpoint):
    return "".join(
        json.dumps({"custom_id": f"{i}", "method": "POST", "url": endpoint, "body": asked}) + "\n"
        for i, asked in ((i, body(endpoint, i)) for i in range(COUNT))
    ).encode()


def until(look):
    deadline = time.monotonic() + 120
    while True:
        found = look()
        if found is not None:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_openai(sdk, model, endpoint):
    file = sdk.files.create(file=("in.jsonl", lines(endpoint)), purpose="batch")
    assert sdk.files.wait_for_processing(file.id).status == "processed"
    batch = sdk.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )

    def ended():
        now = sdk.batches.retrieve(batch.id)
        return now if now.status == "completed" else None

    done = until(ended)
    assert batch.id in [one.id for one in sdk.batches.list()]
    said = [json.loads(one) for one in sdk.files.content(done.output_file_id).iter_lines()]
    assert len(said) == done.request_counts.completed == COUNT
    create = sdk.chat.completions.create if endpoint == CHAT else sdk.completions.create
    for one in said[:8]:
        alone = create(model=model, **body(endpoint, int(one["custom_id"])))
        assert one["response"]["body"]["choices"] == alone.to_dict()["choices"]


def test_anthropic(url, model):
    def message(i):
        return {
            "model": model,
            "max_tokens": 4 + i % 9,
            "temperature": 0,
            "messages": [{"role": "user", "content": f"Tell me about {i} seas."}],
        }

    requests = [{"custom_id": f"{i}", "params": message(i)} for i in range(COUNT)]
    requests.append({"custom_id": "bad", "params": message(1) | {"max_tokens": -1}})
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as sdk:
        batch = sdk.messages.batches.create(requests=requests)

        def ended():
            now = sdk.messages.batches.retrieve(batch.id)
            return now if now.processing_status == "ended" else None

        done = until(ended)
        counts = done.request_counts
        assert (counts.succeeded, counts.errored, counts.processing) == (COUNT, 1, 0)
        results = {one.custom_id: one.result for one in sdk.messages.batches.results(batch.id)}
        assert len(results) == COUNT + 1
        assert results["bad"].error.error.type == "invalid_request_error"
        for i in range(0, COUNT, 8):
            more = {"temperature": 0}
            asked = {name: value for name, value in message(i).items() if name != "temperature"}
            alone = sdk.messages.create(**asked, extra_body=more)
            assert results[f"{i}"].message.content == alone.content
        assert [one.id for one in sdk.messages.batches.list()] == [batch.id]
        assert sdk.messages.batches.delete(batch.id).type == "message_batch_deleted"


def test_litellm(url):
    at = {"custom_llm_provider": "openai", "api_base": f"{url}/v1", "api_key": "none"}
    content = io.BytesIO(lines(CHAT))
    content.name = "in.jsonl"
    file = litellm.create_file(file=content, purpose="batch", **at)
    batch = litellm.create_batch(
        completion_window="24h", endpoint=CHAT, input_file_id=file.id, **at
    )

    def ended():
        now = litellm.retrieve_batch(batch_id=batch.id, **at)
        return now if now.status == "completed" else None

    done = until(ended)
    text = litellm.file_content(file_id=done.output_file_id, **at).text
    assert len(text.splitlines()) == COUNT
