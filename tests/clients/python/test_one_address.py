"""Two chat models, an embedder and a reranker at one address, with the clients that people have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving import SERVER_PYTHON, lanewise_server

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

PROGRAM = Path(__file__).with_name("one_address.py")
TINY_EMBEDDER = Path(__file__).parents[2] / "support" / "tiny_embedder.py"


def test_one_program_uses_all_four(tmp_path):
    embedder = tmp_path / "tiny-bert"
    make = [str(SERVER_PYTHON), str(TINY_EMBEDDER), str(embedder)]
    subprocess.run(make, check=True, timeout=120)
    models = {"chat": "demo", "second": "demo", "embedder": embedder, "reranker": embedder}
    listed = [
        {"name": name, "model": str(model), "settings": {"threads": 1, "kv_memory": "32MiB"}}
        for name, model in models.items()
    ]
    for one in listed[2:]:
        del one["settings"]["kv_memory"]
    file = tmp_path / "models.yaml"
    file.write_text(json.dumps({"memory": "6GiB", "models": listed}))
    with lanewise_server("--models", str(file), python=SERVER_PYTHON) as url:
        command = [sys.executable, str(PROGRAM), url, *models]
        # LiteLLM would look for prices on the network, three times.
        environment = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all four models answered" in done.stdout
