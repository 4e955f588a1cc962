"""Logits and encodings of whole steps have the same golden hashes at every Arm level.

``make test-all`` has all on every emulated CPU, ``make test`` some on the first of each level.
"""

from pathlib import Path

import pytest
from levels import EACH_LEVEL, LEVELS, TIMEOUT_S, Level

from topics import THOROUGH, thorough

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
at_every_cpu = pytest.mark.parametrize(
    "level", [*EACH_LEVEL, *thorough(*(one for one in LEVELS if one not in EACH_LEVEL))], ids=str
)


def own_level(level: Level) -> tuple[str, ...]:
    """Each CPU runs the level it is here for; the plainest one, at times, also those below it."""
    return () if THOROUGH and level == LEVELS[0] else (f"--isa={level.isas[-1]}",)


def lines_of(done) -> list[str]:
    """What the program printed, without its last line."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[:-1]


# An emulator takes four times as long for SVE, which has own kernels for large batches only.
PARTS = dict(
    zip((level.name for level in EACH_LEVEL), [(0, 3), (1, 3), (2, 3), (2, 12)], strict=True)
)


def compare(emulated, level: Level, program: str, golden: str, *arguments: str) -> None:
    """All models on every CPU in ``make test-all``; else each on the first CPU of one level."""
    lines = (GOLDEN / golden).read_text().splitlines()
    if not THOROUGH:
        part, parts = PARTS[level.name]
        lines, arguments = lines[part::parts], ("--quick", f"--part={part}/{parts}")
    assert lines_of(emulated(level, program, *arguments, *own_level(level))) == lines


@at_every_cpu
def test_logits_have_their_golden_hashes(emulated, level: Level) -> None:
    compare(emulated, level, "test_golden", "logits.txt", "--quick")


@at_every_cpu
def test_encodings_have_their_golden_hashes(emulated, level: Level) -> None:
    compare(emulated, level, "test_encode", "encodings.txt")


@at_every_cpu
def test_pictures_have_their_golden_hashes(emulated, level: Level) -> None:
    compare(emulated, level, "test_towers", "pictures.txt")


@pytest.mark.parametrize(
    "level", [EACH_LEVEL[2], *thorough(*EACH_LEVEL[:2], EACH_LEVEL[3])], ids=str
)
def test_a_text_among_512_has_its_own_bits_beside_a_chat(emulated, level: Level) -> None:
    done = emulated(level, "test_crowd", *own_level(level))
    assert lines_of(done) == (GOLDEN / "crowds.txt").read_text().splitlines()
