"""Requests that do not say how to draw get what the model's makers want, unless switched off."""

import json

import httpx
import pytest

from serving import lanewise_server
from tiny_models import tiny_model, write_hf

pytestmark = [pytest.mark.e2e, pytest.mark.native]


def texts(url: str, **ask) -> set[str]:
    """The texts of several seeds."""
    bodies = ({"prompt": "ab", "max_tokens": 12, "seed": seed, **ask} for seed in range(4))
    answers = (httpx.post(f"{url}/v1/completions", json=body, timeout=60) for body in bodies)
    return {answer.json()["choices"][0]["text"] for answer in answers}


def test_defaults_of_the_model(tmp_path):
    folder = write_hf(tiny_model("llama2"), tmp_path / "model")
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "top_k": 1, "temperature": 1.5}))
    with lanewise_server(str(folder), "--threads", "1") as url:
        (greedy,) = texts(url)
        assert texts(url, temperature=0) == {greedy}
        assert texts(url, temperature=None, top_k=None) == {greedy}
        assert len(texts(url, top_k=0)) > 1
        messages = [{"role": "user", "content": "ab"}]
        ask = {"messages": messages, "max_tokens": 12}
        first, second = (
            httpx.post(f"{url}/v1/chat/completions", json=ask | {"seed": seed}, timeout=60)
            for seed in (1, 2)
        )
        assert first.json()["choices"] == second.json()["choices"]
    with lanewise_server(str(folder), "--threads", "1", "--generation-config", "off") as url:
        assert len(texts(url)) > 1
