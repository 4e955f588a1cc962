"""The page of several models: its file, its program and its commands, with small models."""

import os
import subprocess
import sys

import httpx
import pytest
import yaml

from encoder_models import encoder_model
from encoder_tokenizers import word_piece
from family_models import write_model
from guide_text import blocks
from lanewise.guide import pages
from lanewise.loading.checkpoints.hub import bundled_model
from lanewise.router.entries import read_catalogue
from lanewise.settings import Settings
from serving import lanewise_server
from tiny_embedder import VOCAB_SIZE, write_embedder

pytestmark = [pytest.mark.e2e, pytest.mark.native]

BLOCKS = blocks(pages.path_of("several-models"))
[FILE] = [block.text for block in BLOCKS if block.kind == "text"]
[PROGRAM] = [block.text for block in BLOCKS if block.kind == "python"]


def write_reranker(folder):
    write_model(encoder_model("bert_reranker"), folder)
    word_piece(size=VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The page's file with other models, in less memory."""
    folder = tmp_path_factory.mktemp("several")
    small = {
        "chat": bundled_model(),
        "embedder": write_embedder(folder / "embedder"),
        "reranker": write_reranker(folder / "reranker"),
    }
    content = yaml.safe_load(FILE) | {"memory": "6GiB"}
    content["models"] = [
        {name: value for name, value in one.items() if name != "memory"}
        | {"model": str(small[one["name"]])}
        for one in content["models"]
    ]
    content["models"][0]["settings"]["kv_memory"] = "64MiB"
    file = folder / "models.yaml"
    file.write_text(yaml.safe_dump(content))
    with lanewise_server("--models", str(file), "--threads", "1") as running:
        yield running


def test_the_file_is_read_as_it_stands(tmp_path):
    file = tmp_path / "models.yaml"
    file.write_text(FILE)
    found = read_catalogue(str(file), Settings())
    assert [entry.name for entry in found.entries] == ["chat", "embedder", "reranker"]


def test_texts_are_found_ranked_and_answered_from(url):
    program = PROGRAM.replace("http://localhost:8000", url)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "model='chat'" in done.stdout
    states = httpx.get(f"{url}/health/ready").json()["models"]
    assert states == dict.fromkeys(("chat", "embedder", "reranker"), "loaded")


def test_its_commands_work(url):
    commands = [
        command
        for block in BLOCKS
        if block.kind == "console"
        for command in block.commands()
        if command.startswith("curl")
    ]
    assert len(commands) == 5
    for command in commands:
        here = command.replace("localhost:8000", url).replace("curl", "curl -fsS", 1)
        done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert httpx.get(f"{url}/health/ready").json()["models"]["reranker"] == "unloaded"
