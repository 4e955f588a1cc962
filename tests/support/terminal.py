"""A program in a terminal of its own, as a person would use it."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """What a program shows, and the keys that it is given."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self._raw = b""
        self._read = 0  # characters that were waited for

    def type(self, keys: str) -> None:
        os.write(self._controller, keys.encode())

    def interrupt(self, pattern: str) -> None:
        """Ctrl-C at a prompt, until what it shows.

        Python's line editor sees one that comes just before it waits only with the next key.
        """
        for _ in range(10):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.wait_for(pattern, timeout_s=6.0)
                return
        raise AssertionError(f"{pattern!r} did not come:\n{self.shown[self._read :]}")

    @property
    def shown(self) -> str:
        """All so far, without colours and movements."""
        return ESCAPES.sub("", self._raw.decode("utf-8", "replace"))

    def wait_for(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """The next place that matches, after those that were waited for before."""
        deadline = time.monotonic() + timeout_s
        while True:
            shown = self.shown
            if found := re.compile(pattern).search(shown, self._read):
                self._read = found.end()
                return found
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not come:\n{shown[self._read :]}"
            if select.select([self._controller], [], [], left)[0]:
                try:
                    read = os.read(self._controller, 1 << 16)
                except OSError:  # how a terminal says that its last program has ended
                    read = b""
                assert read, f"{pattern!r} did not come before the end:\n{shown[self._read :]}"
                self._raw += read


@contextlib.contextmanager
def terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a program in a terminal; it is ended at the end if it has not by itself."""
    controller, its_side = pty.openpty()
    fcntl.ioctl(its_side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 4000, 0, 0))

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        command,
        env={**os.environ, "TERM": "xterm", **environment},
        stdin=its_side,
        stdout=its_side,
        stderr=its_side,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(its_side)
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
