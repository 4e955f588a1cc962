"""Cross-compiled programs for the tests that run under emulation."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import topics
from native_build import ARM_COMPILER, arm_program, check, tool, why_not_arm

sys.path.insert(0, str(Path(__file__).parent))

import arm_root
from levels import Level, missing, run


@pytest.fixture(scope="session")
def cross_compiler() -> str:
    """The C compiler for aarch64."""
    if reason := why_not_arm():
        topics.skip("arm", reason)
    return ARM_COMPILER


@pytest.fixture(scope="session")
def cross_build(cross_compiler: str) -> Callable[[str], Path]:
    """Builds one target of native/ for aarch64, statically linked; returns the program."""
    return arm_program


@pytest.fixture(scope="session")
def cross_install(cross_compiler: str) -> Callable[[Path], None]:
    """Installs the library for aarch64 below a prefix, as ``cmake --install`` does."""

    def install(prefix: Path) -> None:
        cmake, folder = tool("cmake"), arm_program("lanewise").parent
        assert cmake is not None
        check(cmake, "--install", folder, "--prefix", prefix)

    return install


@pytest.fixture(scope="session")
def content(
    tmp_path_factory: pytest.TempPathFactory, cross_install: Callable[[Path], None]
) -> arm_root.ArmRoot:
    """The arm64 image's files, with Python for every level that can be emulated."""
    if reason := arm_root.missing():
        topics.skip("arm", reason)
    root = arm_root.ArmRoot(tmp_path_factory.mktemp("image"))
    root.assemble(cross_install)
    return root


@pytest.fixture(scope="session")
def emulated(cross_compiler: str) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program at a level: ``emulated(level, "test_cpu", arguments…)``."""

    def result(level: Level, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        if reason := missing(level):
            topics.skip("arm", reason)
        return run(arm_program(program), level, *arguments)

    return result
