"""The installed command with the bundled model, as a process of its own."""

import pytest

from serving import lanewise_server


@pytest.fixture(scope="session", autouse=True)
def _native_library(library):
    """Every test here needs it."""


@pytest.fixture(scope="module")
def url(_native_library):
    """A server shared by the tests of a module."""
    with lanewise_server("--threads", "1") as url:
        yield url
