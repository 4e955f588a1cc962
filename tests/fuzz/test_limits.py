"""Changed files of models stay within limits of time and memory, as a process of its own finds."""

import subprocess
import sys

import pytest

from tests.fuzz.limits import MAX_BYTES, Worst
from tests.fuzz.names import ROOT


@pytest.mark.slow
def test_a_few_of_each_kind():
    command = [sys.executable, "-m", "tests.fuzz.limits", "--count", "60", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        *("templates", "tokenizers", "configs")
    ]


@pytest.mark.parametrize(
    "taken",
    [(6.0, 0, None), (0.0, MAX_BYTES + 1, None), (0.0, 0, "a\nb"), (0.0, 0, "a" * 500)],
)
def test_what_is_over_a_limit_is_told(taken):
    worst = Worst("configs")
    worst.note("a", 0.1, 1, "short")
    assert not worst.problems
    worst.note("b", *taken)
    assert worst.problems
