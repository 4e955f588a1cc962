"""Whatever is wrong with a request, the answer is an error object that names it."""

import json

import openai
import pytest

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
OK = {"prompt": "abc", "max_tokens": 2}
OK_CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def error_of(response, status: int) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1, 2], [3, -4]]}, "prompt[1][1]"),
        ({"prompt": [1, 99999]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": "", "add_special_tokens": False}, "prompt"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.5}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100}, "prompt"),
        ({"seed": 2**65}, "seed"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"bad_words": [""]}, "bad_words[0]"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_bad_field_is_named(client, change, param):
    error = error_of(client.post(COMPLETIONS, json=OK | change), 400)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert str(param).split("[")[0].split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": ""}]}]},
            "messages[0].content[0].type",
        ),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"n": 17}, "n"),
    ],
)
def test_bad_field_of_a_chat_is_named(client, change, param):
    assert error_of(client.post(CHAT, json=OK_CHAT | change), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8: byte 0xff at offset 12"),
        (b"[" * 60_000, "not JSON"),
    ],
)
def test_body_that_is_no_json_object(client, body, says):
    error = error_of(client.post(COMPLETIONS, content=body), 400)
    assert says in error["message"]


def test_too_long_for_the_context(client):
    prompt = "word " * 101 + "more words"
    error = error_of(client.post(COMPLETIONS, json=OK | {"prompt": prompt}), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        "This model's maximum context length is 512 tokens. However, you requested at least 517"
        " tokens (516 in the prompt). Please reduce the length of the prompt or completion."
        " (context_length_exceeded)"
    )
    with_long_prompt = client.post(COMPLETIONS, json=OK | {"prompt": "word " * 1000})
    assert error_of(with_long_prompt, 400)["code"] == "context_length_exceeded"
    huge = client.post(COMPLETIONS, json=OK | {"prompt": "word " * 1_000_000})
    assert error_of(huge, 400)["message"].startswith(
        "This model's maximum context length is 512 tokens. However, you requested at least 19531"
        " tokens (5000000 characters in the prompt)."
    )


def test_ten_megabytes_are_refused_while_they_arrive(client):
    body = json.dumps({"prompt": "x" * 10_000_000}).encode()
    error = error_of(client.post(COMPLETIONS, content=body), 413)
    assert "8388608" in error["message"]

    def pieces():
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]

    assert error_of(client.post(COMPLETIONS, content=pieces()), 413)
    assert client.post(COMPLETIONS, json=OK).status_code == 200


def test_unknown_model_path_and_method(client):
    error = error_of(client.post(COMPLETIONS, json=OK | {"model": "gpt-9"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error_of(client.get("/v1/models/gpt-9"), 404)["code"] == "model_not_found"
    assert error_of(client.get("/v1/nothing"), 404)["code"] == "not_found"
    response = client.get(COMPLETIONS)
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


def test_sdk_raises_its_own_exceptions(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as sdk:
        with pytest.raises(openai.NotFoundError):
            sdk.completions.create(model="other", prompt="x")
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.completions.create(model="toy", prompt="x", temperature=-9)
        assert caught.value.param == "temperature"


def test_failing_step_reaches_the_stream_and_the_server_goes_on(client, server):
    encode = server.state.tokenizer.encode
    server.runner.fail_on_token = encode("~", add_bos=False, parse_special=False)[0]
    try:
        error = error_of(client.post(COMPLETIONS, json=OK | {"prompt": "a~"}), 500)
        assert "a value in layer 0 is not finite" in error["message"]
        body = OK | {"prompt": "a~", "stream": True}
        text = client.post(COMPLETIONS, json=body).text
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        assert json.loads(events[0])["error"]["code"] == "internal_error"
        assert events[1] == "[DONE]"
        with (
            openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0) as sdk,
            pytest.raises(openai.APIError),
        ):
            list(sdk.completions.create(model="toy", prompt="a~", stream=True))
        assert client.post(COMPLETIONS, json=OK).status_code == 200
    finally:
        server.runner.fail_on_token = None
    assert server.metric("lanewise_step_errors_total") == 3
    assert server.metric("vllm:request_success_total", finished_reason="error") == 3
    server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
