"""What a run tells: a failure at once, and at its end a line for each topic that was left out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import topics

SUPPORT = Path(topics.__file__).parent
CONFTEST = """
from telling import Telling

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Telling(config))
"""
TESTS = """
import pytest, topics

def test_passes(): pass

def test_fails(): assert 1 == 2

@pytest.mark.parametrize("name", ["a", "b"])
def test_left_out(name): topics.skip("browser", "no " + name)
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two"])
def test_what_fails_and_what_is_left_out_is_told(tmp_path, workers):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers, tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert "FAILED test_some.py::test_fails" in lines
    assert f"    2  browser: {topics.TOPICS['browser']}" in lines
    assert lines[-1].strip("= ").startswith("1 failed, 1 passed, 2 skipped")


def test_a_skip_names_its_topic(monkeypatch):
    monkeypatch.setattr(topics, "REQUIRED", frozenset())  # whatever this machine is prepared for
    text = topics.reason("arm", "no emulator")
    assert topics.topic_of(text) == topics.topic_of(f"Skipped: {text}") == "arm"
    assert topics.topic_of("no emulator") is None
    assert topics.topic_of("[legs] none") is None
    assert topics.forbidden(text) is None
    assert "without a topic" in topics.forbidden("no emulator")
    monkeypatch.setattr(topics, "REQUIRED", frozenset({"arm"}))
    assert "LANEWISE_REQUIRE=arm forbids" in topics.forbidden(text)
    with pytest.raises(AssertionError, match="unknown topic legs"):
        topics.reason("legs", "none")
