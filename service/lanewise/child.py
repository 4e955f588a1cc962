"""The command of a parent that starts servers: ``lanewise`` in a process that ends with it."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
# Where memory runs out the kernel ends a server before its parent, which starts it again.
FIRST_TO_GO = "300"


def main(arguments: list[str]) -> None:
    """Become ``lanewise`` with all arguments but the first, which is the parent's process id.

    Without any it becomes a server that waits for them (``lanewise.spare``).

    A program of its own: what a process with many threads may do between fork and exec is little.
    """
    parent, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it was gone before
        sys.exit(1)
    with suppress(OSError):  # a system without it
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    module = "lanewise" if command else "lanewise.spare"
    os.execv(sys.executable, [sys.executable, "-m", module, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
