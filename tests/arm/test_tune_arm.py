"""Choices between kernels on the emulated CPUs that have some, and on one that has none."""

import levels
import pytest

pytestmark = [pytest.mark.arm, pytest.mark.slow]


@pytest.mark.parametrize("name", ["n1", "v1-sve256", "max-sve512"])
def test_choices_between_kernels_are_checked(cross_build, name: str) -> None:
    (level,) = (level for level in levels.LEVELS if level.name == name)
    if reason := levels.missing(level):
        pytest.skip(reason)
    done = levels.run(cross_build("test_tune"), level)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].endswith(" 0 failed")
