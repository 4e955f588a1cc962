"""Packed tensors of every Arm level, loaded and repacked at every other one."""

import pytest
from levels import LEVELS, TIMEOUT_S

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

LEVEL = next(level for level in LEVELS if set(level.isas) >= {"neon", "dotprod", "i8mm"})


def test_every_level_takes_what_another_packed(emulated) -> None:
    done = emulated(LEVEL, "test_packed")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
