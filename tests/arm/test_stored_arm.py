"""A store that x86 has written is read by emulated Arm cores, and the other way round.

``make test-all`` has it: an emulated Python takes minutes.
"""

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import arm_root
import httpx
import pytest
from levels import LEVELS, TIMEOUT_S, Level, missing

import topics
from family_models import write_case
from serving import free_port, metric, running, wait_for

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

CPUS = {level.name: level for level in LEVELS}
CHOSEN = topics.thorough(CPUS["n1"], CPUS["v1-sve256"], CPUS["n2-sve128"])
ANSWER_S = 300.0  # an idle machine needs one
BLOCK_TOKENS = 32
WORDS = ("the", "river", "rises", "over", "wide", "fields")
# Two blocks at least in both tokenizers.
TEXTS = {"demo": 120, "lfm2": 24}


@contextmanager
def serving(
    python: list[str], model: str, store: Path, env: dict[str, str] | None = None
) -> Iterator[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [*python, "-m", "lanewise", "serve", model, "--port", str(port), "--threads", "1"]
    command += ["--kv-store", str(store), "--weights", "q8_0", "--served-model-name", "one"]
    with running(command, f"{url}/health/ready", env=env) as process:
        yield url
        process.kill()
        process.wait()


def asked(url: str, text: str) -> tuple[str, int]:
    """A digest of the answer and its log-probabilities, and how many tokens were not computed."""
    body = {"model": "one", "prompt": text, "max_tokens": 6, "temperature": 0, "logprobs": 5}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=ANSWER_S).json()
    said = json.dumps(answer["choices"], sort_keys=True).encode()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    n_blocks = (usage["prompt_tokens"] - 1) // BLOCK_TOKENS
    if cached == 0:
        labels = 'engine="0",model_name="one",result="written"'
        name = f"lanewise_kv_store_blocks_total{{{labels}"
        wait_for(lambda: metric(url, name) >= n_blocks, "blocks in the store", ANSWER_S)
    return hashlib.sha256(said).hexdigest(), cached // BLOCK_TOKENS - n_blocks


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("level", CHOSEN, ids=str)
def test_a_store_is_read_by_the_other_architecture(
    level: Level, name: str, content: arm_root.ArmRoot, tmp_path: Path
) -> None:
    if reason := missing(level):
        topics.skip("arm", reason)
    model = name
    if name != "demo":
        model = str(write_case(name, tmp_path / "model", max_position_embeddings=512))
    text = " ".join(random.Random(5).choices(WORDS, k=TEXTS[name]))
    here, there = [sys.executable], [str(content.python(level))]
    env = arm_root.environment(tmp_path / "cache")
    with serving(here, model, tmp_path / "of-x86") as url:
        expected, _ = asked(url, text)
    with serving(there, model, tmp_path / "of-x86", env) as url:
        assert asked(url, text) == (expected, 0)
    with serving(there, model, tmp_path / "of-arm", env) as url:
        found, lacking = asked(url, text)
        assert found == expected
        assert lacking < 0
    with serving(here, model, tmp_path / "of-arm") as url:
        assert asked(url, text) == (expected, 0)
