"""Builds a wheel to publish from the tracked files: ``make wheel``, ``make wheel-arm``.

The sources are copied away first, so that nothing else gets in, and a copy elsewhere gives the same
bytes. With ccache, objects that were compiled elsewhere are taken; they are the same. The compiler
and the C library are this machine's: what the platform tag promises is checked
(``deploy/wheel_checks.py``), and holds on Debian 12. The wheel for the other architecture is
cross-compiled.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from deploy.lock import ARCHITECTURES, GLIBC

ROOT = Path(__file__).resolve().parent.parent
TOOLCHAIN = "toolchains/aarch64-linux-gnu.cmake"
# What would change the code that is compiled, or when it says that it was.
LEFT_OUT = (
    "CFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "CMAKE_ARGS",
    "SKBUILD_CMAKE_ARGS",
    "SOURCE_DATE_EPOCH",
)


def platform_tag(architecture: str) -> str:
    """The platform of a wheel's name, such as ``manylinux_2_34_x86_64``."""
    return f"manylinux_2_{GLIBC}_{architecture}"


def copy_tracked(source: Path, target: Path) -> None:
    """Copy what is under version control in ``source`` as it is now; ValueError if nothing is."""
    command = ["git", "-C", str(source), "ls-files", "-z"]
    listed = subprocess.run(command, check=False, capture_output=True, text=True)
    names = [name for name in listed.stdout.split("\0") if name]
    if not names:
        raise ValueError(f"{source}: not a git checkout, and wheels are made of tracked files")
    for name in names:
        if (source / name).is_file():  # deleted but not yet committed is as good as absent
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def build(sources: Path, architecture: str, output: Path, *options: str) -> None:
    """Build the wheel of an architecture into a folder; ``options`` are more of ``pip wheel``."""
    arguments = list(options)
    if architecture != platform.machine():
        arguments.append(f"--config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE={TOOLCHAIN}")
    if os.environ.get("CI"):
        arguments.append("--config-settings=cmake.define.LANEWISE_WERROR=ON")
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    environment["_PYTHON_HOST_PLATFORM"] = platform_tag(architecture)
    environment["CCACHE_BASEDIR"] = str(sources)  # the same objects as elsewhere
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    pip += ["--no-build-isolation", "--no-deps", "--wheel-dir", str(output.resolve())]
    subprocess.run([*pip, *arguments, str(sources)], check=True, env=environment)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the wheels that are asked for; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder [%(default)s]")
    parser.add_argument("architecture", choices=ARCHITECTURES, nargs="+")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="lanewise-wheel-") as copy:
            copy_tracked(ROOT, Path(copy))
            for architecture in options.architecture:
                build(Path(copy), architecture, options.output)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode  # pip has said why
    return 0


if __name__ == "__main__":
    sys.exit(main())
