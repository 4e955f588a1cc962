"""What the arm64 image holds, as files of this machine that run under emulation, without root.

Debian's part is what the Dockerfile installs, unpacked by .ci/install_system_packages.sh; Python's
is what the image's lock file names, from the package index; ours is what goes into the wheel, with
the library cross-compiled.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

from levels import TOOLS, Level, command_of

from deploy import lock

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
DEBIAN = TOOLS / "debian-arm64"
NAMES = DEBIAN / "packages"  # what it was asked for
INSTALL_S = 300


def system_packages() -> str:
    """The Debian packages that the image installs into its base, as the Dockerfile has them."""
    stage = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    [names] = re.findall(r"apt-get install --yes --no-install-recommends ([^\\]+) \\\n", stage)
    return str(names)


def missing() -> str | None:
    """Why there is no arm64 Debian of the image here, or None."""
    script = ".ci/install_system_packages.sh unpacks them"
    if not NAMES.is_file():
        return f"no arm64 packages of the image in {DEBIAN}; {script}"
    if NAMES.read_text().strip() != system_packages():
        return f"the arm64 packages in {DEBIAN} are not those of deploy/Dockerfile; {script}"
    return None


class ArmRoot:
    """The image's /opt/lanewise in a folder, and the commands that run it at a level."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        version = ".".join(map(str, lock.PYTHON))
        self._python = DEBIAN / "usr" / "bin" / f"python{version}"
        self._packages = folder / "lib" / f"python{version}" / "site-packages"

    def assemble(self, install_library: Callable[[Path], None]) -> None:
        """Fill the folder; ``install_library`` puts the cross-compiled library below a prefix."""
        self._install_locked()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        for package in project["tool"]["scikit-build"]["wheel"]["packages"]:
            leave_out = shutil.ignore_patterns("__pycache__", "training")
            target = self._packages / Path(package).name
            shutil.copytree(ROOT / package, target, ignore=leave_out)
        install_library(self._packages)
        # Of a virtual environment this is what Python looks at.
        (self.folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (self.folder / "bin").mkdir()

    def python(self, level: Level) -> Path:
        """Python at a level: a script, so that what it starts as ``sys.executable`` is it too."""
        script = self.folder / "bin" / f"python3-{level.name}"
        emulator, *options, program = command_of(self._python, level)
        options += ["-L", str(DEBIAN), "-0", '"$0"', program, "-B"]
        script.write_text(f'#!/bin/sh\nexec {emulator} {" ".join(options)} "$@"\n')
        script.chmod(0o755)
        return script

    def _install_locked(self) -> None:
        """The files of requirements.lock, by their hashes; pytest shows pip's words if it fails."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        options = ["--require-hashes", "--no-deps", "--target", str(self._packages)]
        requirements = ["--requirement", str(ROOT / "deploy" / "requirements.lock")]
        subprocess.run(
            [*pip, *options, *lock.platform_options("aarch64"), *requirements],
            check=True,
            timeout=INSTALL_S,
        )


def environment(cache: Path) -> dict[str, str]:
    """What the image's programs find in their environment; nothing of this machine's."""
    return {"PATH": os.defpath, "XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
