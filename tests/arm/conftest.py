"""Cross-compiled programs for the tests that run under emulation."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

ROOT = Path(__file__).resolve().parents[2]
COMPILER = "aarch64-linux-gnu-gcc"


def tool(name: str) -> str | None:
    """A build tool beside this Python, or on PATH."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def check(*command: str | Path) -> None:
    """Run a build step; its output is the failure."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}", pytrace=False)


@pytest.fixture(scope="session")
def cross_compiler() -> str:
    """The C compiler for aarch64."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no cross-compiler: {COMPILER} is not on PATH")
    return COMPILER


@pytest.fixture(scope="session")
def cross_build(cross_compiler: str) -> Callable[[str], Path]:
    """Build one target of native/ for aarch64, statically linked; returns the program."""
    cmake = tool("cmake")
    if cmake is None:
        pytest.skip("no cmake to run the cross-compiler with")
    folder = ROOT / "build" / "aarch64-tests"
    generator = ["-G", "Ninja"] if tool("ninja") else []
    if generator and not (folder / "build.ninja").exists():
        generator.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    options = ["-DLANEWISE_TESTS=ON", "-DLANEWISE_WERROR=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/native/toolchains/aarch64-linux-gnu.cmake"
    check(cmake, "-S", ROOT / "native", "-B", folder, toolchain, *generator, *options)

    def build(target: str) -> Path:
        check(cmake, "--build", folder, "--parallel", str(os.cpu_count()), "--target", target)
        return folder / target

    return build
