"""Cross-compiled programs for the tests that run under emulation."""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from emulations import LOWEST_PRIORITY, Done, Emulations, Run

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


def why_not() -> str | None:
    """Why this machine cannot build for aarch64, or None."""
    if shutil.which(COMPILER) is None:
        return f"no cross-compiler: {COMPILER} is not on PATH"
    if tool("cmake") is None:
        return "no cmake to run the cross-compiler with"
    return None


def build(target: str, *prefix: str) -> Path:
    """Build one target of native/ for aarch64, statically linked; returns the program."""
    folder = ROOT / "build" / "aarch64-tests"
    _configure(folder)
    parallel = ("--parallel", str(os.cpu_count()))
    check(*prefix, tool("cmake"), "--build", folder, *parallel, "--target", target)
    return folder / target


def install_library(prefix: Path) -> None:
    """Build liblanewise.so for aarch64 and put it where a wheel has it."""
    folder = build("lanewise").parent
    check(tool("cmake"), "--install", folder, "--prefix", prefix)


@functools.cache
def _configure(folder: Path) -> None:
    generator = ["-G", "Ninja"] if tool("ninja") else []
    if generator and not (folder / "build.ninja").exists():
        generator.append(f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}")
    options = ["-DLANEWISE_TESTS=ON", "-DLANEWISE_WERROR=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/native/toolchains/aarch64-linux-gnu.cmake"
    check(tool("cmake"), "-S", ROOT / "native", "-B", folder, toolchain, *generator, *options)


EMULATIONS = Emulations(lambda target: build(target, *LOWEST_PRIORITY))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let these tests come last: what they wait for runs beside all others.

    Behind them come those that build by themselves: no two builds may meet in one folder.
    """
    own = Path(__file__).parent
    builders = [own / "test_bench_arm.py", own / "test_image_arm.py"]
    items.sort(key=lambda item: (own in item.path.parents, item.path in builders))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin with the programs of all tests that were selected."""
    if session.config.option.collectonly or why_not() is not None:
        return
    values = [getattr(item, "callspec", None) for item in session.items]
    params = [value for one in values if one is not None for value in one.params.values()]
    EMULATIONS.start(value for value in params if isinstance(value, Run))


def pytest_sessionfinish() -> None:
    EMULATIONS.close()


@pytest.fixture(scope="session")
def cross_compiler() -> str:
    """The C compiler for aarch64."""
    if reason := why_not():
        pytest.skip(reason)
    return COMPILER


@pytest.fixture(scope="session")
def cross_build(cross_compiler: str) -> Callable[[str], Path]:
    """Builds one target of native/ for aarch64, statically linked; returns the program."""
    return build


@pytest.fixture(scope="session")
def cross_install(cross_compiler: str) -> Callable[[Path], None]:
    """Installs the library for aarch64 below a prefix, as ``cmake --install`` does."""
    return install_library


@pytest.fixture(scope="session")
def emulated(cross_compiler: str) -> Callable[[Run], Done]:
    """What a program did under emulation. A test whose parameter it is need not wait for all."""
    return EMULATIONS.result
