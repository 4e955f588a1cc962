"""The installed command with the bundled model, as a process of its own."""

import pytest

from browsing import chromium, visit
from serving import lanewise_server
from toy_server import CONFIG, toy_server


@pytest.fixture(scope="session", autouse=True)
def _native_library(library):
    """Every test here needs it."""


@pytest.fixture(scope="module")
def url(_native_library):
    """A server shared by the tests of a module."""
    with lanewise_server("--threads", "1") as url:
        yield url


@pytest.fixture(scope="module")
def browser(_native_library):
    """Headless Chromium."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def server():
    """The toy's server, whose answers a test can choose."""
    with toy_server(CONFIG) as server:
        yield server


@pytest.fixture
def seen(browser, server):
    """The toy's page, just opened."""
    with visit(browser, server.url) as seen:
        yield seen
