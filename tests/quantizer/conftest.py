"""What tests of the quantizer have in common."""

import pytest


@pytest.fixture(autouse=True)
def _without_check(monkeypatch):
    """Results are compared with their source by the tests of that alone: it takes half a second."""
    monkeypatch.setenv("LANEWISE_CHECK_TOKENS", "0")
