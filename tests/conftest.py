"""Shared fixtures, and the rule that a machine prepared for something may not skip it."""

import os
import re
from pathlib import Path

import pytest

import native_build

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"

# What a skip can be about: topic -> pattern of its reason. LANEWISE_REQUIRE names the topics this
# machine is prepared for (comma-separated). Skipping one of those, or for a reason that no topic
# covers, is then a failure.
TOPICS = {
    "real model": re.compile(r"\breal model\b"),
    "data": re.compile(r"shared/data|test data"),
    "reference": re.compile(r"\b(torch|transformers|sentence_transformers)\b"),
    "picture": re.compile(r"\bmatplotlib\b"),
    "clients": re.compile(r"^(skipped: )?client \S+ \S+ is not installed"),
    "ray": re.compile(r"\bray\b"),
    "machine": re.compile(r"\bthis (cpu|kernel)\b|\broot reads every file\b"),
    "arm": re.compile(r"\b(arm|arm64|aarch64\S*|qemu\S*|emulat\w+|cross[- ]compiler)\b"),
    "prometheus": re.compile(r"\b(prometheus|promtool)\b"),
    "browser": re.compile(r"\bchromium\b"),
    "systemd": re.compile(r"\bsystemd-analyze\b"),
    "native": re.compile(r"\b(native|liblanewise\S*|compiler|gcc)\b"),
}
REQUIRED = frozenset(filter(None, os.environ.get("LANEWISE_REQUIRE", "").split(",")))


def pytest_configure(config: pytest.Config) -> None:
    if unknown := REQUIRED - TOPICS.keys():
        raise pytest.UsageError(
            f"LANEWISE_REQUIRE: unknown {', '.join(sorted(unknown))}; known: {', '.join(TOPICS)}"
        )


def topic_of(reason: str) -> str | None:
    """What a skip for ``reason`` is about."""
    text = reason.lower()
    return next((name for name, pattern in TOPICS.items() if pattern.search(text)), None)


def forbidden(reason: str) -> str | None:
    """Why skipping for ``reason`` is a failure here, or None."""
    topic = topic_of(reason)
    if topic is None:
        return f"skipped for a reason that tests/conftest.py has no topic for: {reason}"
    if topic in REQUIRED:
        return f"LANEWISE_REQUIRE={topic} forbids this skip: {reason}"
    return None


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def fail_if_forbidden(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where LANEWISE_REQUIRE forbids it."""
    if not REQUIRED or not report.skipped or hasattr(report, "wasxfail"):
        return
    if why := forbidden(reason_of(report)):
        report.outcome = "failed"
        report.longrepr = why


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_if_forbidden(report)
    is_reference = item.get_closest_marker("reference") is not None
    if report.skipped and topic_of(reason_of(report)) == "reference" and not is_reference:
        report.outcome = "failed"  # `make reference` would never run it
        report.longrepr = "skipped for want of the reference, and not marked as reference"
    return report


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to build what selected tests need, which takes longer than those before them."""
    needed = any("programs" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not session.config.option.collectonly and native_build.is_possible():
        native_build.programs_being_built()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_if_forbidden(report)
    return report


@pytest.fixture(scope="session")
def library() -> None:
    """Skips what needs the native library where it is not built."""
    from lanewise.runtime.library import LibraryMissingError, native  # clients' Pythons have none

    try:
        native()
    except LibraryMissingError as error:
        pytest.skip(f"liblanewise.so is not built: {error}")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the C library's test programs, and of fuzz targets that replay files."""
    if not native_build.is_possible():
        pytest.skip("no cmake or gcc to build the native test programs with")
    return native_build.programs_being_built().result()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Models, tokenizers and texts too large for the repository, in a folder beside the clone."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no test data: ../shared/data does not exist")
    return SHARED_DATA


@pytest.fixture
def tree(tmp_path):
    """Writes files under a root of its own: ``tree({"proc/meminfo": "…"})`` returns that root."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write
