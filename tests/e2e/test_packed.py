"""A server of packed weights gives the tokens of the model that they were packed from."""

import subprocess
import sys

import httpx
import pytest

from serving import lanewise_server

pytestmark = [pytest.mark.e2e, pytest.mark.native]

PROMPTS = ("The sea was", "It was a dark night, and", "é")


def answers(url: str) -> list[str]:
    texts = []
    for prompt in PROMPTS:
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 3}
        texts.append(httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["text"])
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16, "seed": 5}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    return [*texts, answer["choices"][0]["message"]["content"]]


@pytest.mark.parametrize("load", ["map", "copy"])
def test_same_tokens(tmp_path, url, load):
    folder = tmp_path / "packed"
    command = [sys.executable, "-m", "lanewise", "pack", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith(f"{folder}: ")
    expected = answers(url)
    assert len(expected[0]) > 10
    with lanewise_server(str(folder), "--threads", "1", "--load", load) as packed_url:
        name = httpx.get(f"{packed_url}/v1/models").json()["data"][0]["id"]
        assert name == "packed"
        assert answers(packed_url) == expected
