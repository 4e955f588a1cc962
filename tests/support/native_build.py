"""Builds the C library's programs, once for all tests that run them."""

import functools
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "native"


def tool(name: str) -> str | None:
    """A build tool beside this Python, or on PATH."""
    return shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)


def check(*command: str | Path) -> str:
    """Run a command, which must succeed; returns what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def is_possible() -> bool:
    """Whether there is what it takes to build."""
    return tool("cmake") is not None and shutil.which("gcc") is not None


def build_programs() -> Path:
    """Build all test programs and fuzz targets as `make test-native` does; returns their folder."""
    cmake = tool("cmake")
    assert cmake is not None
    options = ("-DLANEWISE_TESTS=ON", "-DLANEWISE_WERROR=ON")
    check(cmake, "-S", ROOT / "native", "-B", FOLDER, *options)
    # Behind tests that wait for deadlines of their own, before emulations, which are needed later.
    check("nice", cmake, "--build", FOLDER, "--parallel", str(os.cpu_count()))
    return FOLDER


@functools.cache
def programs_being_built() -> Future[Path]:
    """The folder of ``build_programs``, which begins with the first call, beside what else runs."""
    worker = ThreadPoolExecutor(1)
    future = worker.submit(build_programs)
    worker.shutdown(wait=False)
    return future
