"""Packed tensors of every Arm level, loaded and repacked at every other one."""

import levels
import pytest

pytestmark = [pytest.mark.arm, pytest.mark.slow]


def test_every_level_takes_what_another_packed(cross_build) -> None:
    level = next(level for level in levels.LEVELS if set(level.isas) >= {"neon", "dotprod", "i8mm"})
    if reason := levels.missing(level):
        pytest.skip(reason)
    done = levels.run(cross_build("test_packed"), level)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
