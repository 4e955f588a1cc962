"""Each coding agent as it is published, set up as the guide's page says, with a scripted model."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from coding_agent_kinds import KINDS
from coding_agents import Agent, closed_proxy
from data_files import data
from scripted_clients import CONTEXT, NAME, scripted_server, write_model

# As llama.cpp's package has them, each a form of calls or an order of roles of its own.
PUBLISHED = Path(sys.prefix).parent / "llama.cpp" / "templates"
TEMPLATES = {
    "Qwen 2.5": "Qwen-Qwen2.5-7B-Instruct",
    "Qwen 3.5": "Qwen3.5-4B",
    "Qwen3-Coder": "Qwen3-Coder",
    "Gemma 2": "google-gemma-2-2b-it",
    "Gemma 4": "google-gemma-4-31B-it",
    "Mistral": "mistralai-Mistral-Nemo-Instruct-2407",
    "GLM": "GLM-4.6",
    "gpt-oss": "openai-gpt-oss-120b",
}


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """The folder of a model with a family's template."""
    made = {}

    def model_of(family: str) -> Path:
        if family not in made:
            name = f"{TEMPLATES[family]}.jinja"
            path = PUBLISHED / name
            template = path if path.exists() else data(f"templates/{name}")
            made[family] = write_model(tmp_path_factory.mktemp("models") / "model", template)
        return made[family]

    return model_of


@pytest.fixture(scope="session", params=TEMPLATES)
def server(request, model_of, tmp_path_factory):
    """A server for each template, with room for everything."""
    folder = tmp_path_factory.mktemp("servers") / "server"
    with scripted_server(folder, model_of(request.param)) as server:
        yield server


@pytest.fixture(scope="session")
def qwen(model_of, tmp_path_factory):
    """A server with Qwen 2.5's template."""
    folder = tmp_path_factory.mktemp("servers") / "qwen"
    with scripted_server(folder, model_of("Qwen 2.5")) as server:
        yield server


@pytest.fixture
def small(kind, model_of, tmp_path):
    """A server whose context holds an agent's first turns and little more."""
    model, context = model_of("Qwen 2.5"), kind.small_context
    with scripted_server(tmp_path / "small", model, context=context) as server:
        yield server


@pytest.fixture(params=KINDS.values(), ids=lambda kind: kind.title)
def kind(request):
    return request.param


@pytest.fixture
def made(tmp_path):
    """Sets an agent up for a server, in a home and a project of the test's own."""
    with ExitStack() as proxies:
        outside, wants = proxies.enter_context(closed_proxy()), set()

        def made(kind, server) -> Agent:
            wants.update(kind.wants)
            home, project = tmp_path / "home", tmp_path / "project"
            home.mkdir()
            project.mkdir()
            context = server.context if kind.knows_context else CONTEXT
            return Agent(kind, home, project, server.url, NAME, context, outside.url)

        yield made
        assert outside.hosts <= wants, "it talked to others than the server"
