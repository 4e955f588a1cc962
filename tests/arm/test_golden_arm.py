"""The logits of the whole step have the same golden hashes on every emulated Arm CPU."""

from pathlib import Path

import pytest
from emulations import Run
from levels import LEVELS, TIMEOUT_S

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "logits.txt"
# Each CPU runs the level it is here for; the plainest one also those below it.
RUNS = [
    Run("test_golden", level, ("--quick", *([f"--isa={level.isas[-1]}"] if i else [])))
    for i, level in enumerate(LEVELS)
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_logits_have_their_golden_hashes(emulated, run: Run) -> None:
    done = emulated(run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == GOLDEN.read_text().splitlines()
