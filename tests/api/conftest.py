"""A server around the toy model, one for each test module."""

import pytest

from lanewise.text.chat_template import ChatTemplate
from toy_server import RunningServer, toy_server


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer):
    return server.client


@pytest.fixture
def template(server: RunningServer):
    """Changes the template of the toy server, and perhaps what its model says, for a test."""
    own = server.state.chat_template

    def use(text: str | None) -> None:
        server.state.chat_template = None if text is None else ChatTemplate({"default": text})

    yield use
    server.state.chat_template = own
    server.runner.script = None


@pytest.fixture
def tokenizer(server: RunningServer):
    return server.state.tokenizer
