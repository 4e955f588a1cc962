"""What a person types: lines with a history that lasts, and texts of several lines."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

FENCE = '"""'
HISTORY_LINES = 1000
FIRST, NEXT = ">>> ", "... "


def read_text() -> str:
    r"""One text: a line, lines that end with a backslash, or all between two \"\"\".

    EOFError at the end of the input, KeyboardInterrupt for Ctrl-C.
    """
    line = input(FIRST)
    if line.lstrip().startswith(FENCE):
        return _fenced(line.lstrip().removeprefix(FENCE))
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = input(NEXT)
    return "\n".join([*lines, line])


def _fenced(rest: str) -> str:
    lines = []
    while not rest.rstrip().endswith(FENCE):
        lines.append(rest)
        rest = input(NEXT)
    lines.append(rest.rstrip().removesuffix(FENCE))
    return "\n".join(lines).strip("\n")


def history_file() -> Path:
    """Where typed lines are kept, for their owner alone."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "lanewise" / "chat_history"


@contextlib.contextmanager
def line_editing(commands: Sequence[str]) -> Iterator[None]:
    """Edit lines with arrows, a history and Tab for commands, where input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python without it still reads lines
        yield
        return

    def complete(text: str, state: int) -> str | None:
        found = [f"{name} " for name in commands if name.startswith(text)]
        at_start = readline.get_line_buffer().startswith("/") and readline.get_begidx() == 0
        return found[state] if at_start and state < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    # Pasted lines are one text, which Enter sends.
    readline.parse_and_bind("set enable-bracketed-paste on")
    readline.set_history_length(HISTORY_LINES)
    path = history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            readline.write_history_file(path)
