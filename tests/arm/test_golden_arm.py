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
    done = levels.run(cross_build("test_golden"), level, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == GOLDEN.read_text().splitlines()
