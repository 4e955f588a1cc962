"""What a test can be left out for: a topic each, and how to get what is missing.

A skip names its topic, so that a prepared machine can forbid it (LANEWISE_REQUIRE, comma-separated)
and the end of a run can tell one line for each.
"""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType
from typing import NoReturn

import pytest

TOPICS = {
    "thorough": "many more cases of what was run: make test-all",
    "arm": "emulated Arm CPUs: .ci/install_system_packages.sh",
    "browser": "the page in a browser: sudo apt-get install chromium fonts-dejavu-core",
    "clients": "clients of others: make test-clients",
    "data": "models, tokenizers and texts that cannot be shipped: ../shared/data",
    "docs": "the guide as a site: make docs",
    "haproxy": "the gateway: sudo apt-get install haproxy",
    "kubectl": "a dry run of kubectl 1.27 or newer",
    "machine": "what this CPU or kernel does not have",
    "native": "the C library and its programs: gcc, libc6-dev and make setup",
    "picture": "pictures of lanewise compare: matplotlib",
    "prometheus": "live metrics and alerts: sudo apt-get install prometheus",
    "ray": "Ray Serve: make test-ray",
    "real model": "a real model from the package index: it could not be downloaded",
    "reference": "transformers itself: make reference",
    "systemd": "units: sudo apt-get install systemd",
}
REQUIRED = frozenset(filter(None, os.environ.get("LANEWISE_REQUIRE", "").split(",")))
THOROUGH = bool(os.environ.get("LANEWISE_THOROUGH"))  # nights and releases: make test-all
_REASON = re.compile(r"^(?:Skipped: )?\[([a-z ]+)\] ")


def reason(topic: str, why: str) -> str:
    """The reason of a skip, which names its topic."""
    assert topic in TOPICS, f"unknown topic {topic}; known: {', '.join(TOPICS)}"
    return f"[{topic}] {why}"


def skip(topic: str, why: str) -> NoReturn:
    """Leave the running test or fixture out."""
    pytest.skip(reason(topic, why))


def skip_if(condition: bool, topic: str, why: str) -> pytest.MarkDecorator:
    """Mark tests to leave out where ``condition`` holds."""
    return pytest.mark.skipif(condition, reason=reason(topic, why))


def module(name: str, topic: str) -> ModuleType:
    """Import a module; without it the test or the file that asks for it is left out."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(reason(topic, f"{name} is not installed"), allow_module_level=True)


def topic_of(text: str) -> str | None:
    """The topic that the reason of a skip names."""
    found = _REASON.match(text)
    return found[1] if found and found[1] in TOPICS else None


def forbidden(text: str) -> str | None:
    """Why skipping for this reason is a failure here, or None."""
    topic = topic_of(text)
    if topic is None:
        return f"a skip without a topic (tests/support/topics.py): {text}"
    if topic in REQUIRED:
        return f"LANEWISE_REQUIRE={topic} forbids this skip: {text}"
    return None


def thorough(*values: object) -> list[object]:
    """Parameters of a test that only ``make test-all`` runs; a tuple is one of each."""
    found = []
    for value in values:
        given = value if isinstance(value, tuple) else (value,)
        name = "-".join(map(str, given))
        found.append(pytest.param(*given, id=name, marks=pytest.mark.thorough))
    return found


def cases(usual: int, thorough: int) -> int:
    """How many cases a loop makes: ``thorough`` in ``make test-all``, else ``usual``."""
    return thorough if THOROUGH else usual
