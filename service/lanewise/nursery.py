"""The program that a router's processes are forked from: it has imported what they need.

Python's part of a start takes longer than a packed model. Standard input is a socket for messages
(``lanewise.forking``); the program ends when that is closed.
"""

import importlib
import os
import socket
from typing import Any

from lanewise import cli, forking
from lanewise.native.library import native

# What a server imports while its model loads, and what plans its memory.
MODULES = (
    "lanewise.server.serve",
    "lanewise.server.keeper",
    "lanewise.api.http_server",
    "lanewise.text.pooled_text",
    "lanewise.router.sizing",
)


def main() -> None:
    """Fork what is asked for."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # with more, to import numpy is to start threads
    cli.get_ready("serve")
    for name in MODULES:
        importlib.import_module(name)
    native()  # its header takes a tenth of a second to read
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    router = os.getppid()
    if not forking.is_alone():
        raise RuntimeError("an import has started a thread: nothing can be forked")
    forking.answer_forks(control, router, lambda message: _work(message, router))


def _work(message: dict[str, Any], router: int) -> int:
    from lanewise.router import sizing
    from lanewise.server import keeper

    if message["do"] == "plan":
        os.dup2(0, 1)
        return sizing.main()
    return cli.guarded(lambda: keeper.keep(message, router))


if __name__ == "__main__":
    main()
