"""Logits and encodings of whole steps have the same golden hashes at every Arm level.

With LANEWISE_ALL_CPUS on every emulated CPU, as ``make test-all`` has it; kernels have that always.
"""

from pathlib import Path

import pytest
from emulations import Run
from levels import ALL_CPUS, LEVELS, TIMEOUT_S

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "logits.txt"
# Each CPU runs the level it is here for; the plainest one also those below it.
ISAS = [(level, (f"--isa={level.isas[-1]}",) if i else ()) for i, level in enumerate(LEVELS)]
# The first CPU of each level.
FIRST = [
    (level, isa)
    for i, (level, isa) in enumerate(ISAS)
    if level.isas not in [one.isas for one in LEVELS[:i]]
]
CHOSEN = ISAS if ALL_CPUS else FIRST
RUNS = [Run("test_golden", level, ("--quick", *isa)) for level, isa in CHOSEN]
ENCODINGS = GOLDEN.with_name("encodings.txt")
ENCODING_RUNS = [Run("test_encode", level, isa) for level, isa in CHOSEN]
CROWDS = GOLDEN.with_name("crowds.txt")
CROWD_RUNS = [Run("test_crowd", *one) for one in FIRST]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_logits_have_their_golden_hashes(emulated, run: Run) -> None:
    done = emulated(run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == GOLDEN.read_text().splitlines()


@pytest.mark.parametrize("run", ENCODING_RUNS, ids=str)
def test_encodings_have_their_golden_hashes(emulated, run: Run) -> None:
    done = emulated(run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == ENCODINGS.read_text().splitlines()


@pytest.mark.parametrize("run", CROWD_RUNS, ids=str)
def test_a_text_among_512_has_its_own_bits_beside_a_chat(emulated, run: Run) -> None:
    done = emulated(run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:-1] == CROWDS.read_text().splitlines()
