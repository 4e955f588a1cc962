"""Faults from outside that a real server must bear; all of them take minutes."""

import pytest

from loadtests.faults import FAULTS, main
from topics import thorough

OTHERS = (
    "SIGTERM while starting",
    "SIGTERM when idle",
    "SIGTERM in a prompt",
    "SIGTERM in an answer",
    "SIGTERM in a body",
    "SIGTERM in a grammar",
    "SIGSTOP",
    "unreadable model",
)


@pytest.mark.e2e
@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("fault", ["SIGKILL", "full disk", *thorough(*OTHERS)])
def test_a_server_bears(fault, capsys):
    status = main(["--quick", "--only", fault])
    assert status == 0, capsys.readouterr().out


def test_a_fault_that_is_not_borne_is_told(monkeypatch, capsys):
    monkeypatch.setitem(FAULTS, "SIGSTOP", lambda site: ["it fell"])
    assert main(["--only", "SIGSTOP"]) == 1
    assert "it fell" in capsys.readouterr().out
