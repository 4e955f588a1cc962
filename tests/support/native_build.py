"""Builds the C library's programs: for this machine, and for aarch64 with a cross compiler.

python tests/support/native_build.py      all that the tests need and this machine can build
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Where `make setup` builds the library: the programs are linked from the same objects.
FOLDER = ROOT / "build" / f"py3-none-linux_{platform.machine()}"
ARM_FOLDER = ROOT / "build" / "aarch64-tests"
ARM_COMPILER = "aarch64-linux-gnu-gcc"
ARM_TOOLCHAIN = ROOT / "native" / "toolchains" / "aarch64-linux-gnu.cmake"
ARM_TARGETS = ("all", "one_kernel", "one_operation", "one_step")
STRICT = ("-DLANEWISE_WERROR=ON",) if os.environ.get("CI") else ()


def tool(name: str) -> str | None:
    """A build tool beside this Python, or on PATH."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def check(*command: str | Path) -> str:
    """Run a command, which must succeed; returns what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def is_possible() -> bool:
    """Whether there is what it takes to build for this machine."""
    return tool("cmake") is not None and shutil.which("gcc") is not None


def why_not_arm() -> str | None:
    """Why this machine cannot build for aarch64, or None."""
    if shutil.which(ARM_COMPILER) is None:
        return f"no cross-compiler: {ARM_COMPILER} is not on PATH"
    if tool("cmake") is None:
        return "no cmake to run the cross-compiler with"
    return None


@functools.cache
def programs() -> Path:
    """The folder of all test programs and fuzz targets, up to date."""
    with _alone_in(FOLDER):
        _configure(FOLDER, "-DLANEWISE_TESTS=ON", *STRICT)
        _make(FOLDER, "all")
    return FOLDER


@functools.cache
def arm_program(target: str) -> Path:
    """A target of native/ for aarch64, statically linked and up to date."""
    with _alone_in(ARM_FOLDER):
        options = ("-DLANEWISE_TESTS=ON", "-DCMAKE_EXE_LINKER_FLAGS=-static", *STRICT)
        _configure(ARM_FOLDER, f"-DCMAKE_TOOLCHAIN_FILE={ARM_TOOLCHAIN}", *options)
        _make(ARM_FOLDER, target)
    return ARM_FOLDER / target


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """No other process of the tests builds in a folder meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".tests-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def _configure(folder: Path, *options: str) -> None:
    generator = []
    if tool("ninja") and not (folder / "CMakeCache.txt").exists():
        generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    check(_cmake(), "-S", ROOT / "native", "-B", folder, *generator, *options)


def _make(folder: Path, target: str) -> None:
    parallel = ("--parallel", str(os.cpu_count()))
    check(_cmake(), "--build", folder, *parallel, "--target", target)


def _cmake() -> str:
    cmake = tool("cmake")
    assert cmake is not None, "no cmake"
    return cmake


def main() -> None:
    """Build everything, so that no test waits for it."""
    print("building the test programs of the C library", flush=True)
    programs()
    if (reason := why_not_arm()) is None:
        print("building the same for aarch64: a few minutes", flush=True)
        for target in ARM_TARGETS:
            arm_program(target)
    else:
        print(f"not for aarch64: {reason}")


if __name__ == "__main__":
    main()
