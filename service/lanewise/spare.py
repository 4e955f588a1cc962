"""A server that has imported what it needs, and waits to be told what to serve.

Python's part of a start takes longer than a packed model. Reads one line, a JSON list of the
arguments of ``lanewise``, and becomes that command; ends if its input does.
"""

import importlib
import json
import os
import sys

from lanewise import cli

# What a server imports while its model loads.
MODULES = ("lanewise.server.serve", "lanewise.api.http_server", "lanewise.text.pooled_text")


def main() -> int:
    """Wait, and run the command; the exit status."""
    cli.get_ready("serve")
    for name in MODULES:
        importlib.import_module(name)
    line = sys.stdin.readline()
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    return cli.main(json.loads(line)) if line else 0


if __name__ == "__main__":
    sys.exit(main())
