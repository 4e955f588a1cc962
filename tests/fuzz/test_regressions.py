"""Inputs that once were findings of a fuzzer, and each target's own seeds: none is one now."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.names import (
    NATIVE,
    PYTHON,
    REGRESSIONS,
    ROOT,
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


@pytest.fixture(scope="module")
def programs() -> Path:
    """The native targets, built without a fuzzer to replay files."""
    bin_folder = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=bin_folder) or shutil.which("cmake")
    if cmake is None or shutil.which("gcc") is None:
        pytest.skip("no cmake or gcc to build the native test programs with")
    folder = ROOT / "build" / "native"
    targets = [f"fuzz_{name}" for name in NATIVE]
    for command in (
        [cmake, "-S", ROOT / "native", "-B", folder, "-DLANEWISE_TESTS=ON"],
        [cmake, "--build", folder, "--parallel", "2", "--target", *targets],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return folder


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
