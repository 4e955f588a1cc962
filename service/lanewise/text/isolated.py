"""Starts a module of ours in a process that has nothing of the server but what it is given."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


def start_isolated(
    module: str,
    stdin: socket.socket,
    inherited: Sequence[str],
    variables: Mapping[str, str],
    *,
    is_silent: bool = False,
) -> "subprocess.Popen[bytes]":
    """Run ``main`` of a module, with a socket as its input.

    Of the environment it has the ``inherited`` names, and ``variables`` beside them. It writes
    errors where the server does, unless it is silent. Raises OSError.
    """
    root = str(Path(__file__).parents[2])
    path = [os.path.abspath(entry) for entry in (root, *filter(None, sys.path))]
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]  # all paths are known here
    environment = {name: os.environ[name] for name in inherited if name in os.environ}
    return subprocess.Popen(
        [sys.executable, *flags, "-c", PROGRAM.format(path=path, module=module)],
        stdin=stdin.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if is_silent else None,
        env={**environment, **variables},
        cwd="/",
        start_new_session=True,
    )
