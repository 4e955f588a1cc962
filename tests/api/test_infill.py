"""Answers that fill a gap: ``suffix`` in OpenAI's words and Ollama's, and ``/infill``."""

import openai
import pytest

from toy import Script
from toy_server import toy_server

COMPLETIONS = "/v1/completions"
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
FILES = ("<|repo_name|>", "<|file_sep|>")


@pytest.fixture(scope="module")
def server():
    with toy_server(more_special=(*FIM, *FILES)) as running:
        yield running


def shown(server, prompt_ids):
    return server.state.tokenizer.decode(prompt_ids, skip_special=False)


def filled(client, **body):
    body = {"prompt": "def f(x):\n    ", "suffix": "\n    return y", "max_tokens": 5, **body}
    answer = client.post(COMPLETIONS, json={"return_token_ids": True, "seed": 1, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_a_prompt_around_a_gap(client, server):
    gap = "<s><|fim_prefix|>def f(x):\n    <|fim_suffix|>\n    return y<|fim_middle|>"
    [choice] = filled(client)
    assert shown(server, choice["prompt_token_ids"]) == gap
    [same] = filled(client, prompt=choice["prompt_token_ids"], suffix="")
    assert choice["text"] == same["text"]
    assert choice["token_ids"] == same["token_ids"]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        ask = {"model": "toy", "prompt": "def f(x):\n    ", "suffix": "\n    return y", "seed": 1}
        events = list(sdk.completions.create(**ask, max_tokens=5, stream=True))
        assert "".join(event.choices[0].text for event in events) == choice["text"]
    ids = [260, 104, 105]
    first, second = filled(client, prompt=[ids, [97]])
    assert first["prompt_token_ids"][2:5] == ids
    assert second["prompt_token_ids"][2] == 97
    [echoed] = filled(client, echo=True)
    assert echoed["text"] == "def f(x):\n    " + choice["text"]


def test_control_tokens_in_code_are_text(client, server):
    [choice] = filled(client, prompt="<|fim_middle|>", suffix="</s>")
    middle = server.state.tokenizer.split_special("<|fim_middle|>")[0]
    assert choice["prompt_token_ids"].count(middle) == 1
    assert min(server.state.tokenizer.eos_ids) not in choice["prompt_token_ids"]


@pytest.mark.parametrize("end", ["<|fim_pad|>", "<|file_sep|>", "</s>"])
def test_another_file_ends_what_is_filled_in(client, server, end):
    tokenizer = server.state.tokenizer
    said = tokenizer.encode("y = x" + end + "more", add_bos=False, parse_special=True)
    n_prompt = len(filled(client)[0]["prompt_token_ids"])
    server.runner.script = Script([said], min(tokenizer.eos_ids), n_prompt)
    try:
        [choice] = filled(client, max_tokens=50)
        assert (choice["text"], choice["finish_reason"]) == ("y = x", "stop")
    finally:
        server.runner.script = None


def test_infill_in_llama_cpps_words(client, server):
    body = {
        "input_prefix": "a = ",
        "input_suffix": "\nb",
        "prompt": "1 +",
        "n_predict": 4,
        "seed": 1,
    }
    answer = client.post("/infill", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt"] == "<s><|fim_prefix|>a = 1 +<|fim_suffix|>\nb<|fim_middle|>"
    assert answer.json()["tokens_predicted"] == 4
    others = [{"text": "x = 1\n", "filename": "x.py"}, {"text": "y = 2\n"}]
    whole = client.post("/infill", json=body | {"input_extra": others}).json()["prompt"]
    assert whole == (
        "<s><|repo_name|>repository\n<|file_sep|>x.py\nx = 1\n<|file_sep|>tmp\ny = 2\n"
        "<|file_sep|>filename\n<|fim_prefix|>a = 1 +<|fim_suffix|>\nb<|fim_middle|>"
    )
    long = [{"text": "z" * 2000, "filename": "z.py"}]
    cut = client.post("/infill", json=body | {"input_extra": long}).json()
    assert cut["tokens_evaluated"] == 512 - 4
    assert cut["prompt"].startswith("<s>zz")
    assert cut["prompt"].endswith("<|fim_prefix|>a = 1 +<|fim_suffix|>\nb<|fim_middle|>")
    error = client.post("/infill", json={"input_prefix": "a"}).json()["error"]
    assert error["message"] == "input_suffix is required"


def test_ollamas_suffix(client):
    body = {
        "prompt": "a = ",
        "suffix": "\nb",
        "stream": False,
        "options": {"num_predict": 4, "seed": 1},
    }
    [choice] = filled(client, prompt="a = ", suffix="\nb", max_tokens=4)
    assert client.post("/api/generate", json=body).json()["response"] == choice["text"]
    assert client.post("/api/generate", json=body | {"raw": True}).status_code == 400
    assert "insert" in client.post("/api/show", json={"model": "toy"}).json()["capabilities"]


def test_a_model_without_the_tokens_says_so():
    with toy_server() as server:
        for path, body in (
            (COMPLETIONS, {"prompt": "a", "suffix": "b"}),
            ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
            ("/api/generate", {"prompt": "a", "suffix": "b"}),
        ):
            answer = server.client.post(path, json=body)
            assert answer.status_code == 400
            assert "this model does not support insert" in answer.text
        capabilities = server.client.post("/api/show", json={"model": "toy"}).json()["capabilities"]
        assert "insert" not in capabilities
