"""How far a test run is, and at its end one line for each thing that it left out."""

from __future__ import annotations

import time
from collections import Counter

import pytest

import topics

EVERY_S = 15.0


class Telling:
    """A plugin of the process that reports: of pytest itself, or of what leads xdist's workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._told = self._began
        self._n_tests = 0
        self._n_done = 0
        self._n_failed = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn how many tests there are, without xdist."""
        self._n_tests = len(session.items) or self._n_tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: list[str]) -> None:
        """Learn how many tests there are: every worker has collected all of them."""
        self._n_tests = len(ids)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No sign for each test: lines are told instead."""
        if self._config.option.verbose > 0 or hasattr(report, "wasxfail"):
            return None
        if report.outcome == "rerun":
            return ("rerun", "", "")
        if report.failed:
            return ("failed" if report.when == "call" else "error", "", "")
        if report.skipped:
            return ("skipped", "", "")
        return ("passed", "", "") if report.when == "call" else None

    def pytest_runtest_logfinish(self) -> None:
        """Count a test that has ended, and tell how far the run is from time to time."""
        self._n_done += 1
        now = time.monotonic()
        if now - self._told >= EVERY_S and self._config.option.verbose <= 0:
            self._told = now
            failed = f", {self._n_failed} FAILED" if self._n_failed else ""
            seconds = f"{now - self._began:4.0f} s"
            self._write(f"{seconds}: {self._n_done:,} of {self._n_tests:,} tests{failed}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell a failure at once; the end of the run has more of it."""
        if report.outcome == "rerun":
            self._write(f"FAILED, runs again: {report.nodeid}\n{report.longreprtext}")
        if report.failed:
            self._n_failed += 1
            if self._config.option.verbose <= 0:
                self._write(f"FAILED {report.nodeid}")

    def _write(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line)
        reporter.flush()  # into a file or a pipe too

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell what was left out, by topic."""
        counts: Counter[str] = Counter()
        for report in terminalreporter.stats.get("skipped", ()):
            counts[topics.topic_of(reason_of(report)) or reason_of(report)] += 1
        if not counts:
            return
        terminalreporter.section("left out")
        for topic, count in counts.most_common():
            how = topics.TOPICS.get(topic, "no topic")
            terminalreporter.write_line(f"{count:5d}  {topic}: {how}")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
