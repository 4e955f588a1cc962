"""The installed server with a model's own head that guesses: the same answers over HTTP."""

import subprocess
import sys

import httpx
import numpy as np
import pytest

from family_models import family_model, write_case
from mtp_models import cyclic_tensors, write_directory
from serving import lanewise_server, metric, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.native]
WIDE = 1 << 15  # of FFNs
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    model = family_model("qwen3_5")
    head, tensors = cyclic_tensors(model)
    # So much to read in each step that a row more costs little.
    for name in model.tensors:
        if ".mlp." in name:
            size = (64, WIDE) if "down" in name else (WIDE, 64)
            tensors[name] = np.zeros(size, np.float32)
    path = write_directory(
        "qwen3_5",
        tmp_path_factory.mktemp("m") / "model",
        {name: array for name, array in head.items() if ".mlp." not in name}
        | {name.replace("layers.3.", "layers.4."): tensors[name] for name in of_layer(tensors, 3)},
        tensors,
        max_position_embeddings=512,
        intermediate_size=WIDE,
    )
    limits = ("--kv-memory", "16MiB", "--weights", "q8_0")
    with lanewise_server("--model", str(path), "--draft", "mtp", *limits) as url:
        yield url


def of_layer(tensors: dict, number: int) -> list[str]:
    return [name for name in tensors if name.startswith(f"model.layers.{number}.mlp.")]


def ask(url: str, **body: object) -> list[dict]:
    body = {"prompt": "05", "max_tokens": 50, "logprobs": 2, "return_token_ids": True, **body}
    answer = httpx.post(url + "/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@pytest.mark.parametrize("kind", [{"temperature": 0}, {"temperature": 2.0, "seed": 11, "n": 3}])
def test_answers_are_the_same_and_guesses_are_counted(url, kind):
    plain = ask(url, **{"speculative.n_max": 0}, **kind)
    # What steps cost is learnt from the first ones, from more of them on a busy machine.
    wait_for(lambda: ask(url, **kind) != plain or metric(url, ACCEPTED) > 0, "a guess comes true")
    assert ask(url, **kind) == plain
    assert metric(url, ACCEPTED) <= metric(url, "vllm:spec_decode_num_draft_tokens_total")


def test_a_model_without_a_head_ends_the_server_with_what_is_accepted(tmp_path):
    path = write_case("qwen3_5", tmp_path / "m")
    command = [sys.executable, "-m", "lanewise", "serve", "--model", str(path), "--draft", "mtp"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert "does not have; accepted: a file with mtp.fc.weight" in ended.stderr
