"""The logits of the whole step have the same golden hashes on every emulated Arm CPU."""

from collections.abc import Callable
from pathlib import Path

import levels
import pytest

pytestmark = [pytest.mark.arm, pytest.mark.slow]

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "logits.txt"


@pytest.mark.parametrize("level", levels.LEVELS, ids=str)
def test_logits_have_their_golden_hashes(
    cross_build: Callable[[str], Path], level: levels.Level
) -> None:
    if reason := levels.missing(level):
        pytest.skip(reason)
    # Each CPU runs the level it is here for; the plainest one also those below it.
    only = [] if level is levels.LEVELS[0] else [f"--isa={level.isas[-1]}"]
    done = levels.run(cross_build("test_golden"), level, "--quick", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == GOLDEN.read_text().splitlines()
