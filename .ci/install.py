"""Installs Lanewise here and says how far it is.

    install.py [EXTRA ...]
    install.py --list EXTRA     only prints what the extra needs

Two things at once: pip fetches the Python packages of Lanewise and of the extras of pyproject.toml
that are named, while the C library is compiled. pip says either nothing for minutes or everything.
This says a line every ten seconds, and everything only of what fails.
"""

import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERY_S = 10.0
INTERRUPTED = 130  # what shells say of a command that Ctrl-C ended
PACKAGE = re.compile(r"^\s*Collecting ([\w.-]+)")  # of pip
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")  # of Ninja
# Python compiles what it imports: compiling all of a package when it is installed takes longer.
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--verbose"]
LIBRARY = [*PIP, "--no-build-isolation", "--no-deps", "--editable", str(ROOT)]


def main(extras: Sequence[str]) -> int:
    """The exit status: of the first command that failed, or 0."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if extras[:1] == ["--list"]:
        print(*(need for extra in extras[1:] for need in project["optional-dependencies"][extra]))
        return 0
    library = list(LIBRARY)
    if os.environ.get("CI"):  # other compilers warn of other things than those of CI
        library.append("--config-settings=cmake.define.LANEWISE_WERROR=ON")
    packages = [*PIP, "--no-compile", *requirements(project, extras)]
    print("installing the Python packages and compiling the C library: a minute or two", flush=True)
    return run([library, packages], EVERY_S, lambda line: print(line, flush=True))


def requirements(project: dict, extras: Sequence[str]) -> list[str]:
    """What a project and extras of it need, as arguments of ``pip install``."""
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(need for extra in extras for need in optional[extra])]


class Command:
    """A command that runs, and what it has written so far."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.output: list[str] = []
        self._process = subprocess.Popen(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            self.output.extend(lines)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def wait(self) -> int:
        """The exit status, when it has ended and all that it wrote is read."""
        status = self._process.wait()
        self._reader.join()
        return status


def run(commands: Sequence[Sequence[str]], every_s: float, say: Callable[[str], None]) -> int:
    """Run commands side by side and say how far they are; what one writes follows if it fails.

    The exit status is that of the first that failed, or 130 after Ctrl-C, which they have got too.
    """
    began = time.monotonic()
    running = [Command(arguments) for arguments in commands]
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(every_s):
            stages = [progress(one.output) for one in running if one.is_running]
            say(f"{time.monotonic() - began:.0f} s: {'; '.join(stages)}")

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        statuses = [one.wait() for one in running]
    except KeyboardInterrupt:
        statuses = []
        for one in running:
            one.wait()
    ended.set()
    telling.join()
    if not statuses:
        say("stopped; what is compiled is kept, and the same command goes on from there")
        return INTERRUPTED
    for status, one in zip(statuses, running, strict=True):
        if status:
            say("".join(one.output))
            return status
    say(f"installed after {time.monotonic() - began:.0f} s")
    return 0


def progress(output: Sequence[str]) -> str:
    """What a command is at, by the lines that it has written so far."""
    for line in reversed(output):
        if step := STEP.match(line):
            return f"compiling, {step[1]} of {step[2]} files"
        if package := PACKAGE.match(line):
            return f"downloading packages, now {package[1]}"
        if line.startswith("Installing collected packages"):
            return "unpacking the packages"
    return "still installing"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
