"""Shared fixtures, and the rule that a machine prepared for something may not skip it."""

import os
from pathlib import Path

# Before numpy is loaded. Each core has a test; threads that wait for work would take cores away.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch

import pytest

import native_build
import topics
from telling import Telling, reason_of


def pytest_configure(config: pytest.Config) -> None:
    if unknown := topics.REQUIRED - topics.TOPICS.keys():
        known = ", ".join(topics.TOPICS)
        raise pytest.UsageError(
            f"LANEWISE_REQUIRE: unknown {', '.join(sorted(unknown))}; known: {known}"
        )
    # A server that is started without a port takes a free one, not what this machine may serve on.
    os.environ["LANEWISE_PORT"] = "0"
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Telling(config))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not topics.THOROUGH and any(map(item.get_closest_marker, ("thorough", "real_model"))):
        topics.skip("thorough", "nights and releases run it")


def fail_if_forbidden(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure where LANEWISE_REQUIRE forbids it."""
    if not topics.REQUIRED or not report.skipped or hasattr(report, "wasxfail"):
        return
    if why := topics.forbidden(reason_of(report)):
        report.outcome = "failed"
        report.longrepr = why


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_if_forbidden(report)
    is_reference = item.get_closest_marker("reference") is not None
    if report.skipped and topics.topic_of(reason_of(report)) == "reference" and not is_reference:
        report.outcome = "failed"  # `make reference` would never run it
        report.longrepr = "skipped for want of the reference, and not marked as reference"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    fail_if_forbidden(report)
    return report


@pytest.fixture(scope="session")
def library() -> None:
    """Skips what needs the native library where it is not built."""
    from lanewise.native.library import LibraryMissingError, native  # clients' Pythons have none

    try:
        native()
    except LibraryMissingError as error:
        topics.skip("native", f"liblanewise.so is not built: {error}")


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the C library's test programs, and of fuzz targets that replay files."""
    if not native_build.is_possible():
        topics.skip("native", "no cmake or gcc to build the test programs with")
    return native_build.programs()


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
