import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from server import RunningServer, toy_server


@pytest.fixture(scope="module")
def server():
    with toy_server() as running:
        yield running


@pytest.fixture
def client(server: RunningServer):
    return server.client
