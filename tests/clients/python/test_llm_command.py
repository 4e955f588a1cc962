"""The llm command, with the file in which its users name servers like OpenAI's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

LLM = Path(sys.executable).with_name("llm")
MODELS = """
- model_id: sea
  model_name: {model}
  api_base: {base_url}
  supports_schema: true
  supports_tools: true
- model_id: sea-text
  model_name: {model}
  api_base: {base_url}
  completion: true
"""


@pytest.fixture
def llm(tmp_path, base_url, model):
    """Runs the command with a folder of its own; returns what it printed."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        MODELS.format(model=model, base_url=base_url)
    )
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def llm(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, LLM, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return llm


OPTIONS = ("-o", "max_tokens", "8", "-o", "temperature", "0")


def test_chat_whole_and_streamed(llm):
    ask = ("prompt", "-m", "sea", *OPTIONS, "Tell me about the sea.")
    whole = llm(*ask, "--no-stream")
    assert whole
    assert llm(*ask) == whole


def test_a_conversation_goes_on(llm):
    assert llm("prompt", "-m", "sea", *OPTIONS, "Tell me about the sea.")
    assert llm("prompt", "--continue", *OPTIONS, "And then?")


def test_completions(llm):
    assert llm("prompt", "-m", "sea-text", *OPTIONS, "The sea")


def test_a_schema(llm):
    n = {"enum": [1, 2]}
    closed = {"required": ["n"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"n": n}, **closed}
    answer = llm("prompt", "-m", "sea", "--schema", json.dumps(schema), "--no-stream", "Tell me.")
    assert json.loads(answer)["n"] in (1, 2)
