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


UNSTEADY = """
from pathlib import Path

def test_passes_the_second_time():
    before = Path(__file__).with_name("before")
    if not before.exists():
        before.touch()
        raise AssertionError("the first time")

def test_always_fails(): raise AssertionError("every time")
"""


def told(folder, tests, *options):
    """The lines of a run of these tests."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, folder]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two"])
def test_what_passes_the_second_time_is_told(tmp_path, workers):
    lines = told(tmp_path, UNSTEADY, "--reruns", "1", "-rfER", *workers)
    name = "test_some.py::test_passes_the_second_time"
    assert f"FAILED, runs again: {name}" in lines
    assert "E           AssertionError: the first time" in lines
    assert f"RERUN {name}" in lines
    assert "FAILED test_some.py::test_always_fails" in lines
    assert lines[-1].strip("= ").startswith("1 failed, 1 passed, 2 rerun")


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["one process", "two"])
def test_what_fails_and_what_is_left_out_is_told(tmp_path, workers):
    lines = told(tmp_path, TESTS, *workers)
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
