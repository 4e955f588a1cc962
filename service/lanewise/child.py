"""The command of a parent that starts servers: ``lanewise`` in a process that ends with it."""

import os
import sys
from contextlib import suppress
from pathlib import Path

from lanewise.forking import end_with

# Where memory runs out the kernel ends a server before its parent, which starts it again.
FIRST_TO_GO = "300"


def main(arguments: list[str]) -> None:
    """Become ``lanewise`` with all arguments but the first, which is the parent's process id.

    Without any it becomes the process that a router's servers are forked from.

    A program of its own: what a process with many threads may do between fork and exec is little.
    """
    parent, *command = arguments
    end_with(int(parent))
    with suppress(OSError):  # a system without it
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO)
    module = "lanewise" if command else "lanewise.nursery"
    os.execv(sys.executable, [sys.executable, "-m", module, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
