"""The fuzz targets, by name."""

import importlib
import sys
from pathlib import Path
from random import Random
from types import ModuleType

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
REGRESSIONS = FOLDER / "regressions"

NATIVE = sorted(path.stem.removeprefix("fuzz_") for path in (FOLDER / "native").glob("fuzz_*.c"))
PYTHON = sorted(path.stem for path in (FOLDER / "targets").glob("*.py"))


def module_of(name: str) -> ModuleType:
    """The module of a Python target: ``one_input``, ``seeds`` and ``words``."""
    for folder in ("support", "text", "loading"):  # whose helpers the targets use
        if (path := str(ROOT / "tests" / folder)) not in sys.path:
            sys.path.append(path)
    return importlib.import_module(f"tests.fuzz.targets.{name}")


def made_up_inputs() -> list[bytes]:
    """Inputs of native targets, to which any bytes mean something: what few bytes say is little."""
    return [Random(i).randbytes(60 * i) for i in range(20)]


def regressions_of(name: str) -> list[Path]:
    """Inputs that were findings once."""
    return sorted(path for path in (REGRESSIONS / name).glob("*") if path.is_file())
