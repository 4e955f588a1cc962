"""A server around the toy model, one for each test module."""

import pytest

from toy_server import RunningServer, toy_server


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer):
    return server.client
