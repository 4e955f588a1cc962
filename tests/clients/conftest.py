"""Clients as their makers publish them, in virtual environments that have no Lanewise.

Each folder here is such an environment: what it installs is in its requirements.txt. The server is
the one of the development environment, in which they lie.
"""

import importlib.metadata
import json
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import topics
from serving import SERVER_PYTHON, lanewise_server

SUPPORT = Path(__file__).parents[1] / "support"
TINY_EMBEDDER = SUPPORT / "tiny_embedder.py"
ASKED_ABOUT_IMAGES = SUPPORT / "asked_about_images.py"


@cache
def missing_client(folder: Path) -> str | None:
    """The first client of an environment that this Python does not have in the pinned version."""
    clients = (folder / "requirements.txt").read_text().partition("\n\n")[0]
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,]+\])?==(\S+)", clients, re.MULTILINE):
        try:
            found = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found = None
        if found != version:
            return f"{name} {version}"
    return None


class ElsewhereModule(pytest.Module):
    """A module whose imports would fail: it says so without being imported."""

    def collect(self):
        client = missing_client(self.path.parent)
        topics.skip("clients", f"client {client} is not installed")


def pytest_pycollect_makemodule(module_path, parent):
    """Tests of clients run where all clients of their environment are."""
    if missing_client(module_path.parent) is None:
        return None
    return ElsewhereModule.from_parent(parent, path=module_path)


@pytest.fixture(scope="session")
def url():
    """The bundled model, which has a context of 512 tokens."""
    with lanewise_server("--threads", "1", python=SERVER_PYTHON) as url:
        yield url


@pytest.fixture(scope="session")
def base_url(url):
    """What clients of OpenAI's API are given."""
    return f"{url}/v1"


@pytest.fixture(scope="session")
def model():
    """The name under which the bundled model is served."""
    return "lanewise-demo-q8_0"


@pytest.fixture(scope="session")
def embedder(tmp_path_factory):
    """What clients are given of a tiny random embedder, which also reranks, by cosines."""
    folder = tmp_path_factory.mktemp("models") / "tiny-bert"
    subprocess.run([str(SERVER_PYTHON), str(TINY_EMBEDDER), str(folder)], check=True, timeout=120)
    with lanewise_server(str(folder), "--threads", "1", python=SERVER_PYTHON) as url:
        yield {"url": url, "base_url": f"{url}/v1", "model": folder.name, "dims": 16}


@pytest.fixture(scope="session")
def seeing(tmp_path_factory):
    """What clients are given of a tiny model that sees, and what it is to answer about images."""
    folder = tmp_path_factory.mktemp("models")
    subprocess.run([str(SERVER_PYTHON), str(ASKED_ABOUT_IMAGES), str(folder)], check=True)
    asked = json.loads((folder / "asked.json").read_text())
    settings = "--threads", "1", "--kv-cache-dtype", "f32"
    with lanewise_server(str(folder / "seeing"), *settings, python=SERVER_PYTHON) as url:
        yield {"url": url, "base_url": f"{url}/v1", "model": "seeing", "asked": asked}
