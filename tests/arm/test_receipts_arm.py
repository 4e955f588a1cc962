"""Receipts of an x86 server are verified by emulated Arm cores, and those of an Arm server here.

``make test-all`` has it: an emulated Python takes minutes.
"""

import json
import subprocess
import sys
from pathlib import Path

import arm_root
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from levels import LEVELS, TIMEOUT_S, Level, missing

import topics
from serving import free_port, running

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S)]

CPUS = {level.name: level for level in LEVELS}
CHOSEN = topics.thorough(CPUS["n1"], CPUS["v1-sve256"], CPUS["n2-sve128"])
ANSWER_S = 300.0  # an idle machine needs one
ASK = {"prompt": "It was a dark night and", "max_tokens": 24, "seed": 3, "receipt": True}
ASKED = [
    {"n": 4, "frequency_penalty": 0.3},
    {"guided_regex": r"[a-z ]{12} (yes|no)\. [a-z]+"},
    {"prompt": "The sea. " * 40, "ignore_eos": True, "max_tokens": 64},
]


def asked(python: list[str], key: Path, env: dict[str, str] | None = None) -> list[dict]:
    """The receipts of a server, whose answers are made together."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [*python, "-m", "lanewise", "serve", "demo", "--receipts", str(key)]
    command += ["--port", str(port)]
    with running(command, f"{url}/health/ready", env=env):
        found = []
        for more in ASKED:
            answer = httpx.post(f"{url}/v1/completions", json=ASK | more, timeout=ANSWER_S)
            found += answer.json()["receipts"]
    return found


def verified(python: list[str], file: Path, env: dict[str, str] | None = None) -> list[bool]:
    """What ``lanewise verify`` says of each receipt."""
    command = [*python, "-m", "lanewise", "verify", str(file), "--model", "demo", "--json"]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    return [json.loads(line)["verified"] for line in done.stdout.splitlines()] or [done.stderr]


@pytest.mark.parametrize("level", CHOSEN, ids=str)
def test_receipts_are_verified_by_the_other_architecture(
    level: Level, content: arm_root.ArmRoot, tmp_path: Path
) -> None:
    if reason := missing(level):
        topics.skip("arm", reason)
    key, file = tmp_path / "key.pem", tmp_path / "receipts.json"
    made = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    here, there = [sys.executable], [str(content.python(level))]
    env = arm_root.environment(tmp_path / "cache")
    for server, checker in (((here, None), (there, env)), ((there, env), (here, None))):
        file.write_text(json.dumps(asked(server[0], key, server[1])))
        assert verified(checker[0], file, checker[1]) == [True] * 6
