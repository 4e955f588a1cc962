"""Labels and continuations with real kernels: to the bit what each is alone, adapters too."""

import math

import httpx
import pytest

from lora_files import lora_config, lora_tensors, write_adapter
from serving import lanewise_server
from tiny_models import prompt, tiny_model, write_hf

LABELS = ["billing", "a technical problem", "praise", "other"]
TEXT = "My invoice has the wrong address, and nobody answers the telephone. " * 3


def post(client, path, body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def alone(client, ids, n_prompt, model=None):
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0, "model": model}
    logprobs = post(client, "/v1/completions", body)["choices"][0]["logprobs"]
    return logprobs["token_logprobs"][n_prompt:]


def test_labels_of_the_bundled_model(url):
    questions = [{"labels": LABELS}, {"instruction": "Is it a complaint?", "labels": ["yes", "no"]}]
    body = {"input": [TEXT, TEXT[9:]], "questions": questions, "return_token_ids": True}
    with httpx.Client(base_url=url, timeout=60) as client:
        for told in post(client, "/v1/classify", body)["data"]:
            begin = told["prompt_token_ids"]
            for ids, logprob in zip(told["label_token_ids"], told["logprobs"], strict=True):
                assert math.fsum(alone(client, begin + ids, len(begin))) == logprob
            total = math.fsum(map(math.exp, told["logprobs"]))
            for share, logprob in zip(told["probs"], told["logprobs"], strict=True):
                assert abs(share - math.exp(logprob) / total) < 1e-12


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    model = tiny_model("llama3")
    write_hf(model, folder / "base")
    write_adapter(folder / "first", lora_tensors(model, rank=4, seed=4), lora_config(4, 8))
    arguments = ("--lora", f"first={folder / 'first'}", "--served-model-name", "base")
    with (
        lanewise_server(str(folder / "base"), *arguments, "--threads", "2") as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def test_continuations_of_an_adapter_are_its_own(adapted):
    begin, behind = prompt(70), [prompt(3), prompt(9)[4:], [7]]
    body = {"prompt": begin, "continuations": behind}
    found = {}
    for model in ("base", "first"):
        data = post(adapted, "/v1/score", body | {"model": model})["data"]
        found[model] = [one["token_logprobs"] for one in data]
        assert found[model] == [alone(adapted, begin + ids, 70, model) for ids in behind]
    assert found["base"] != found["first"]
