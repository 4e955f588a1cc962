"""How likely labels and other continuations are, over a socket: what each would be alone."""

import math
from concurrent import futures
from dataclasses import replace

import httpx
import numpy as np
import pytest

from lanewise.runtime import BLOCK_TOKENS
from lanewise.text.answers.harmony import TOKENS
from toy_encoder import encoder_server, error_of
from toy_server import CONFIG, toy_server

LABELS = ["good", "bad", "in between", "?"]
TEXT = "the inner of the thing is in there " * 5


@pytest.fixture(scope="module")
def server():
    with toy_server(replace(CONFIG, max_model_len=1024), more_special=TOKENS) as running:
        yield running


def post(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def alone(client, prompt, ids, **more):
    """The log-probabilities of a continuation by itself, as echo shows them."""
    body = {"prompt": [*prompt, *ids], "max_tokens": 0, "echo": True, "logprobs": 0} | more
    logprobs = post(client, "/v1/completions", body)["choices"][0]["logprobs"]
    return logprobs["token_logprobs"][len(prompt) :]


def check_alone(client, told, **more):
    prompt, every = told["prompt_token_ids"], told["label_token_ids"]
    logprobs = [math.fsum(alone(client, prompt, ids, **more)) for ids in every]
    assert told["logprobs"] == logprobs
    shares = np.exp(np.array(logprobs) - max(logprobs))
    assert np.allclose(told["probs"], shares / shares.sum(), rtol=0, atol=1e-12)
    assert told["label"] == told["labels"][int(np.argmax(logprobs))]
    assert told["num_classes"] == len(every)


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_labels_are_as_likely_as_each_alone(client, path):
    texts = [TEXT, "short", TEXT + "!"]
    body = {"input": texts, "labels": LABELS, "return_token_ids": True, "cache_salt": path}
    answer = post(client, path, body)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    for told in answer["data"]:
        assert told["labels"] == LABELS
        check_alone(client, told)
    prompts = sum(len(told["prompt_token_ids"]) for told in answer["data"])
    labels = sum(len(ids) for ids in answer["data"][0]["label_token_ids"])
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == prompts + 3 * labels
    again = post(client, path, body)
    assert again["data"] == answer["data"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == prompts - 3


def test_what_labels_share_is_computed_once(server):
    before = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    body = {"input": TEXT * 4, "labels": LABELS, "return_token_ids": True, "cache_salt": "once"}
    (told,) = post(server.client, "/v1/classify", body)["data"]
    n_prompt = len(told["prompt_token_ids"])
    n_labels = sum(map(len, told["label_token_ids"]))
    computed = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - before
    # Of the prompt the last token gives each label its first logits.
    assert computed <= n_prompt + n_labels + len(LABELS)


def test_a_text_is_computed_once_for_all_questions(server):
    before = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    questions = [{"instruction": f"{i}?", "labels": ["yes", "no"]} for i in range(6)]
    body = {"input": TEXT * 4, "questions": questions, "return_token_ids": True}
    told = post(server.client, "/v1/classify", body | {"cache_salt": "six"})["data"]
    n_prompt = len(told[0]["prompt_token_ids"])
    computed = server.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - before
    # Of each further question at most the block in which it begins to differ, and its labels.
    assert n_prompt < computed <= n_prompt + 6 * (BLOCK_TOKENS + 8)


def test_questions_share_their_text_and_are_as_each_alone(client):
    questions = [
        {"name": "tone", "instruction": "How does it sound?", "labels": LABELS},
        {"labels": ["yes", "no"]},
    ]
    body = {"input": [TEXT, "b"], "questions": questions, "return_token_ids": True}
    data = post(client, "/v1/classify", body)["data"]
    told = [(one["input"], one["question"]) for one in data]
    assert told == [(0, "tone"), (0, 1), (1, "tone"), (1, 1)]
    for one in data:
        check_alone(client, one)
    by_itself = {"input": TEXT, **questions[0]}
    del by_itself["name"]
    (single,) = post(client, "/v1/classify", by_itself)["data"]
    assert single["probs"] == data[0]["probs"]


def test_more_labels_than_run_at_once(client):
    labels = [f"label {i}" for i in range(3 * CONFIG.max_seqs + 1)]
    (told,) = post(
        client, "/v1/classify", {"input": "x", "labels": labels, "return_token_ids": True}
    )["data"]
    check_alone(client, told)
    assert math.isclose(sum(told["probs"]), 1)


def test_a_full_queue_refuses_no_request_in_its_middle(server):
    labels = [f"label {i}" for i in range(40)]
    body = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "n": CONFIG.max_seqs}
    with (
        httpx.Client(base_url=server.url, timeout=60) as other,
        futures.ThreadPoolExecutor(1) as pool,
    ):
        crowd = pool.submit(other.post, "/v1/completions", json=body)
        server.wait_until(lambda: server.metric("vllm:num_requests_running") > 1)
        post(server.client, "/v1/classify", {"input": "x", "labels": labels, "instruction": "?"})
        assert crowd.result().status_code == 200


def test_a_conversation_is_classified_by_its_answer(client):
    messages = [{"role": "system", "content": "Judge."}, {"role": "user", "content": TEXT}]
    body = {"messages": messages, "labels": LABELS, "return_token_ids": True}
    (told,) = post(client, "/v1/classify", body)["data"]
    check_alone(client, told)
    chat = post(client, "/tokenize", {"messages": messages})
    assert told["prompt_token_ids"] == chat["tokens"]


def test_a_model_without_a_template_reads_the_text_as_it_is(client, template, tokenizer):
    template(None)
    body = {"input": "a text", "instruction": "Tone?", "labels": LABELS, "return_token_ids": True}
    (told,) = post(client, "/v1/classify", body)["data"]
    written = "a text\n\nTone?\n"
    assert told["prompt_token_ids"] == tokenizer.encode(written, add_bos=True, parse_special=True)
    check_alone(client, told)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("{{ messages[0].content }}<think>\n{# </think> #}", "<think>\n\n</think>\n\n"),
        (
            "{{ messages[0].content }}{% if enable_thinking is false %}<think></think>{% endif %}",
            "<think></think>",
        ),
        (
            "<|start|>user<|message|>{{ messages[0].content }}<|end|><|start|>assistant"
            "{# <|channel|>analysis #}",
            "<|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_labels_stand_where_content_does_without_reasoning(client, template, tokenizer, text, end):
    template(text)
    body = {"input": TEXT, "labels": LABELS, "return_token_ids": True}
    (told,) = post(client, "/v1/classify", body)["data"]
    assert tokenizer.decode(told["prompt_token_ids"], skip_special=False).endswith(end)
    check_alone(client, told)


def test_who_has_labels_that_go_on_from_others_is_told(client):
    body = {"input": "x", "labels": ["in", "between", "in between"]}
    answer = client.post("/v1/classify", json=body)
    warning = answer.headers["x-lanewise-warning"]
    assert warning == "labels[2] goes on from [0], which is at least as likely therefore"
    probs = answer.json()["data"][0]["probs"]
    assert probs[0] >= probs[2]


def test_continuations_have_the_probabilities_that_they_have_alone(client, tokenizer):
    given = [" of it", "x" * 40, [65, 66, 67]]
    body = {"prompt": TEXT, "continuations": given, "return_token_ids": True}
    answer = post(client, "/v1/score", body)
    prompt = answer["prompt_token_ids"]
    assert prompt == tokenizer.encode(TEXT, add_bos=True, parse_special=True)
    assert answer["data"][2]["token_ids"] == [65, 66, 67]
    for told in answer["data"]:
        logprobs = alone(client, prompt, told["token_ids"])
        assert told["token_logprobs"] == logprobs
        assert told["score"] == math.fsum(logprobs)
        assert math.isclose(told["probability"], math.exp(told["score"]))
    n_tokens = len(prompt) + sum(len(told["token_ids"]) for told in answer["data"])
    assert answer["usage"]["prompt_tokens"] == n_tokens


def test_all_first_tokens_together_are_certain(client, server):
    every = [[token] for token in range(server.state.tokenizer.vocab_size)]
    data = post(client, "/v1/score", {"prompt": "x", "continuations": every})["data"]
    assert 0.99 < sum(told["probability"] for told in data) <= 1 + 1e-6


def test_a_conversation_is_continued(client):
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages, "continuations": ["there"], "return_token_ids": True}
    answer = post(client, "/v1/score", body)
    (told,) = answer["data"]
    assert told["token_logprobs"] == alone(client, answer["prompt_token_ids"], told["token_ids"])


IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("classify", {"input": "x"}, "labels"),
        ("classify", {"input": "x", "labels": []}, "labels"),
        ("classify", {"input": "x", "labels": ["a", "b", "a"]}, "labels[2]"),
        ("classify", {"input": "x", "labels": ["a", ""]}, "labels[1]"),
        ("classify", {"labels": ["a"]}, "input"),
        ("classify", {"input": [], "labels": ["a"]}, "input"),
        ("classify", {"input": "x", "labels": ["a"], "questions": [{"labels": ["a"]}]}, "labels"),
        (
            "classify",
            {"input": "x", "questions": [{"labels": ["a", "a"]}]},
            "questions[0].labels[1]",
        ),
        ("classify", {"input": ["x", "y " * 3000], "labels": ["a"]}, "input[1]"),
        (
            "classify",
            {"messages": [{"role": "user", "content": IMAGE}], "labels": ["a"]},
            "messages[0].content",
        ),
        ("classify", {"input": "x", "labels": ["a"], "model": "none"}, "model"),
        ("classify", {"input": "x", "labels": ["a"], "priority": -1}, "priority"),
        ("score", {"text_1": "x", "text_2": "y"}, "text_1"),
        ("score", {"prompt": "x"}, "continuations"),
        ("score", {"continuations": ["x"]}, "prompt"),
        ("score", {"prompt": "x", "continuations": []}, "continuations"),
        ("score", {"prompt": "x", "continuations": ["a", [1 << 20]]}, "continuations[1]"),
        ("score", {"prompt": [], "continuations": ["a"]}, "prompt"),
        ("score", {"prompt": [1] * 1020, "continuations": ["x" * 9]}, "prompt"),
    ],
)
def test_wrong_fields_are_named(client, path, body, param):
    answer = client.post(f"/v1/{path}", json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_models_with_classes_of_their_own_take_no_others():
    with encoder_server(labels=("good", "bad")) as running:
        answer = running.client.post("/classify", json={"input": "a", "labels": ["x"]})
        assert error_of(answer)["param"] == "labels"
        assert post(running.client, "/v1/classify", {"input": "a"})["data"][0]["num_classes"] == 2
        assert error_of(running.client.post("/classify", json={}))["param"] == "input"


def test_who_leaves_frees_the_blocks(server):
    labels = [f"label {i} {'x' * 40}" for i in range(40)]
    body = {"input": [TEXT] * 20, "labels": labels, "instruction": "?"}
    server.runner.delay_s = 0.02
    try:
        with pytest.raises(httpx.ReadTimeout):
            server.client.post("/v1/classify", json=body, timeout=0.5)
        server.wait_until(lambda: server.metric("lanewise_kv_blocks_used") == 0)
    finally:
        server.runner.delay_s = 0.0
