"""Choices between kernels that give the same bits: measured once per CPU model and library."""

import json
import logging
import os
import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.loading.checkpoints.small_model import cache_folder
from lanewise.native.library import NativeError, library_path, native
from lanewise.runtime.cpu import best_isa, cpu_features

logger = logging.getLogger(__name__)

FORMAT = 1
NEVER = 2**32 - 1
MAX_CHOICES = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """From batches of ``min_rows`` on ``symbol`` runs, below them ``rival``; NEVER is a value."""

    symbol: str
    rival: str
    min_rows: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """The choices in force on a level, and where they are from."""

    choices: list[Choice]
    source: str


def choices(isa: str | None = None) -> list[Choice]:
    """What a level (the best one when not given) leaves open, as it stands; often nothing."""
    return _list("lw_choices", isa)


def measure(isa: str | None = None) -> list[Choice]:
    """The same as this core would have it; takes about a tenth of a second and changes nothing."""
    return _list("lw_tune", isa)


def choose(wanted: Sequence[Choice]) -> None:
    """Make choices hold for the process; NativeError, and none of them holds, if one cannot."""
    clib = native()
    structs = clib.ffi.new("lw_choice[]", len(wanted))
    for struct, choice in zip(structs, wanted, strict=True):
        struct.symbol, struct.rival = choice.symbol.encode()[:63], choice.rival.encode()[:63]
        struct.min_rows = choice.min_rows
    clib.check(clib.lib.lw_choose(structs, len(wanted)))


def prepare(isa: str | None, cpu: str, *, enabled: bool, folder: Path | None = None) -> Tuning:
    """Make the choices of a level hold that were measured on this model of CPU, now or before.

    ``cpu`` is its name. The file in ``folder`` (that of the user's caches when not given) is read
    if it is of this CPU and this library, else written anew; neither needs to succeed.
    """
    standing = choices(isa)
    if not standing:
        return Tuning([], "no two kernels of this level are close")
    if not enabled:
        return Tuning(standing, "off")
    level = isa or best_isa()
    name = re.sub(r"\W+", "-", f"{cpu}-{level}").strip("-").lower()
    path = (folder or cache_folder()) / f"autotune-{name}.json"
    key = _key(level, cpu)
    try:
        kept = _read(path, key)
        choose(kept)
        return Tuning(choices(isa), f"measured before: {path}")
    except FileNotFoundError:
        logger.info("autotune: comparing kernels of %s; the result is kept in %s", level, path)
    except (OSError, ValueError, NativeError) as error:
        logger.info("autotune: measuring anew: %s: %s", path, error)
    measured = measure(isa)
    choose(measured)
    _write(path, key, measured)
    return Tuning(measured, "measured now")


def _list(function: str, isa: str | None) -> list[Choice]:
    clib = native()
    structs, count = clib.ffi.new("lw_choice[]", MAX_CHOICES), clib.ffi.new("uint32_t*")
    name = clib.ffi.NULL if isa is None else clib.ffi.new("char[]", isa.encode())
    clib.check(getattr(clib.lib, function)(name, structs, MAX_CHOICES, count))
    return [
        Choice(clib.text(structs[i].symbol), clib.text(structs[i].rival), structs[i].min_rows)
        for i in range(count[0])
    ]


def _key(level: str, cpu: str) -> dict[str, Any]:
    """What a measurement is valid for; another build of the library has other kernels."""
    status = library_path().stat()
    build = [status.st_size, status.st_mtime_ns]
    about = {"cpu": cpu, "features": cpu_features(), "level": level, "library": build}
    return {"format": FORMAT, **about}


def _read(path: Path, key: dict[str, Any]) -> list[Choice]:
    """The choices in a file; ValueError if they are not those of ``key``."""
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    for name, value in key.items():
        if found.get(name) != value:
            raise ValueError(f"{name} is {found.get(name)!r}, here it is {value!r}")
    rows = found.get("choices")
    if not isinstance(rows, list):
        raise ValueError("choices is not a list")
    return [_choice(row) for row in rows]


def _choice(row: object) -> Choice:
    if isinstance(row, list) and len(row) == 3:
        symbol, rival, rows = row
        if type(symbol) is str and type(rival) is str and type(rows) is int and 0 < rows <= NEVER:
            return Choice(symbol, rival, rows)
    raise ValueError(f"{row!r} is not [kernel, rival, rows]")


def _write(path: Path, key: dict[str, Any], measured: Sequence[Choice]) -> None:
    """Put the file in its place as a whole, so that no other process reads half of it."""
    rows = [[choice.symbol, choice.rival, choice.min_rows] for choice in measured]
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            temporary = file.name
            json.dump({**key, "choices": rows}, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        logger.info("autotune: the result is not kept: %s", error)
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
