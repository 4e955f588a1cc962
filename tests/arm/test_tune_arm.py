"""Choices between kernels on the emulated CPUs that have some, and on one that has none."""

import pytest
from levels import LEVELS, TIMEOUT_S, Level

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

NAMES = ("n1", "v1-sve256", "max-sve512")


@pytest.mark.parametrize("level", [one for one in LEVELS if one.name in NAMES], ids=str)
def test_choices_between_kernels_are_checked(emulated, level: Level) -> None:
    done = emulated(level, "test_tune")
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
