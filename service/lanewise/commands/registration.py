"""What ``lanewise`` must know of a command to offer it."""

from dataclasses import dataclass

from lanewise.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its settings, the module whose ``run`` takes them, its line in ``--help``."""

    settings: type[SourceSettings]
    module: str  # imported when the command runs, so that --help does not wait for numpy
    help: str
    usage: str = "[MODEL] [--SETTING VALUE …]"  # what must be given has no brackets
    example: str = ""  # what follows the command's name
    positional: str = "model"  # the setting that an argument without a flag gives
    shows_sources: bool = False  # `run` is also given where each setting came from
    multiplies: bool = False  # large matrices in numpy: its BLAS gets all threads
