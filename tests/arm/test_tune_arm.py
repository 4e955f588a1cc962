"""Choices between kernels on the emulated CPUs that have some, and on one that has none."""

import pytest
from emulations import Run
from levels import LEVELS, TIMEOUT_S

pytestmark = [pytest.mark.arm, pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 60)]

NAMES = ("n1", "v1-sve256", "max-sve512")
RUNS = [Run("test_tune", level) for level in LEVELS if level.name in NAMES]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_choices_between_kernels_are_checked(emulated, run: Run) -> None:
    done = emulated(run)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
