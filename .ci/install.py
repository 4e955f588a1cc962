"""Runs pip and says how far it is: install.py ARGUMENTS... (of ``pip install``).

pip says either nothing for the minutes that compiling takes, or everything. This says a line every
ten seconds, and everything only if it fails.
"""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

EVERY_S = 10.0
INTERRUPTED = 130  # what shells say of a command that Ctrl-C ended
PACKAGE = re.compile(r"^\s*Collecting ([\w.-]+)")  # of pip
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\] ")  # of Ninja


def main(arguments: Sequence[str]) -> int:
    """The exit status of pip."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--verbose"]
    print("installing the Python packages and compiling the C library: a minute or two", flush=True)
    return run([*pip, *arguments], EVERY_S, lambda line: print(line, flush=True))


def run(command: Sequence[str], every_s: float, say: Callable[[str], None]) -> int:
    """Run a command and say how far it is; its own output follows only if it fails.

    The exit status is the command's, or 130 after Ctrl-C, which the command has got as well.
    """
    began = time.monotonic()
    output: list[str] = []
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(every_s):
            say(f"{time.monotonic() - began:.0f} s: {progress(output)}")

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        interrupted = False
        try:
            output.extend(process.stdout)
        except KeyboardInterrupt:
            interrupted = True
    ended.set()
    telling.join()
    if interrupted:
        say("stopped; what is compiled is kept, and the same command goes on from there")
        return INTERRUPTED
    if process.returncode:
        say("".join(output))
    else:
        say(f"installed after {time.monotonic() - began:.0f} s")
    return process.returncode


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
