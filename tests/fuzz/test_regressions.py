"""Inputs that once were findings of a fuzzer, and each target's own seeds: none is one now."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.json_mutation import mutate_json
from tests.fuzz.names import (
    NATIVE,
    PYTHON,
    REGRESSIONS,
    made_up_inputs,
    module_of,
    regressions_of,
)

pytestmark = pytest.mark.slow


def test_every_regression_belongs_to_a_target() -> None:
    assert {path.name for path in REGRESSIONS.glob("*")} <= {*NATIVE, *PYTHON}


@pytest.mark.parametrize("name", PYTHON)
def test_seeds_are_no_findings(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name == "packed":  # the library writes those
        request.getfixturevalue("library")
    target = module_of(name)
    seeds = list(target.seeds(tmp_path))
    assert seeds
    for data in [b"", *seeds]:
        target.one_input(data)


@pytest.mark.parametrize(
    "path",
    [path for name in PYTHON for path in regressions_of(name)],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_findings_stay_fixed(path: Path) -> None:
    module_of(path.parent.name).one_input(path.read_bytes())


@pytest.mark.native
@pytest.mark.parametrize("name", NATIVE)
def test_native_findings_stay_fixed(name: str, programs: Path, tmp_path: Path) -> None:
    inputs = regressions_of(name)
    for i, data in enumerate(made_up_inputs()):
        inputs.append(tmp_path / f"{i}")
        inputs[-1].write_bytes(data)
    command = [programs / f"fuzz_{name}", *inputs]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == f"{len(inputs)} inputs run, 0 failed\n"


def test_changing_json_never_fails_on_its_largest_numbers() -> None:
    text = b'{"a": ' + b"9" * 4300 + b', "b": [1]}'
    changed = [mutate_json(text, Random(seed)) for seed in range(300)]
    assert text in changed  # one digit more could not be written
    assert len(set(changed)) > 10
