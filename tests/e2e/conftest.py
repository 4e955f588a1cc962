"""The installed command with the bundled model, as a process of its own."""

import pytest

from lanewise.runtime.library import LibraryMissingError, native
from serving import lanewise_server


@pytest.fixture(scope="session", autouse=True)
def _native_library():
    try:
        native()
    except LibraryMissingError as error:
        pytest.skip(f"liblanewise.so is not built: {error}")


@pytest.fixture(scope="module")
def url(_native_library):
    """A server shared by the tests of a module."""
    with lanewise_server("--threads", "1") as url:
        yield url
