"""``lanewise completion``: what a shell needs to complete commands and flags."""

import argparse
from collections.abc import Sequence

from lanewise.settings import SettingsError

SHELLS = ("bash", "zsh")


def completion(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> str:
    """The script for a shell, made from the parser."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        given = repr(" ".join(arguments)) if arguments else "no shell given"
        raise SettingsError(f"completion: {given}; accepted: {' or '.join(SHELLS)}")
    import shtab  # only this needs it

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                _complete_files(sub)
    return str(shtab.complete(parser, arguments[0]))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Have the shell complete names of files where a model or a file is wanted."""
    import shtab

    for action in parser._actions:
        if action.dest.startswith("positional_model") or action.metavar in ("FILE", "TEXT"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
