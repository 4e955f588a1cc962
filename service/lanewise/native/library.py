"""Opens the native library; what its header includes between two markers is the cffi definition."""

import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cffi

LIBRARY = "liblanewise.so"
HEADER = "lanewise.h"
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
ABI_VERSION = 28
NONFINITE = 6  # LW_ERR_NONFINITE: the status of a draw whose logits hold NaN or infinity
NO_TOKEN = 8  # LW_ERR_NO_TOKEN: that of a draw which is forbidden every token


class NativeError(Exception):
    """A native call failed; ``status`` is its ``lw_status``, the message is the library's own."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class LibraryMissingError(NativeError):
    """The native library or its header is absent, or not the one this package was written for."""

    def __init__(self, message: str) -> None:
        super().__init__(message, status=-1)


class Native:
    """The open library: ``ffi`` makes values, ``lib`` holds functions and constants."""

    ffi: Any
    lib: Any

    def __init__(self, header: Path, library: Path) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(definitions(header))
        try:
            self.lib = self.ffi.dlopen(str(library))
        except OSError as error:
            raise LibraryMissingError(f"{library}: cannot be opened ({error})") from None
        found = self.lib.lw_abi_version()
        if not found == self.lib.LW_ABI_VERSION == ABI_VERSION:
            raise LibraryMissingError(
                f"{library}: ABI version {found}, {header} says {self.lib.LW_ABI_VERSION}, "
                f"this package needs {ABI_VERSION} in both: install them together"
            )

    def check(self, status: int) -> None:
        """Raise the library's last error of this thread unless ``status`` is LW_OK."""
        if status != self.lib.LW_OK:
            message = self.ffi.string(self.lib.lw_last_error()).decode("utf-8", "replace")
            raise NativeError(message or f"native call failed with status {status}", status)

    def text(self, pointer: Any) -> str:
        """The Python string of a C string."""
        return self.ffi.string(pointer).decode("utf-8", "replace")


@cache
def native() -> Native:
    """The library that belongs to this package, opened on first use."""
    return Native(header=_find_header(), library=library_path())


def definitions(header: Path) -> str:
    """The C declarations that cffi reads: the files included between the header's two markers."""
    lines = header.read_text(encoding="utf-8").splitlines()
    marks = {
        name: [i for i, line in enumerate(lines) if line.lstrip().startswith(f"// {name}")]
        for name in ("cdef-begin", "cdef-end")
    }
    begin, end = marks["cdef-begin"], marks["cdef-end"]
    if len(begin) != 1 or len(end) != 1 or end[0] < begin[0]:
        raise LibraryMissingError(
            f"{header}: needs one line '// cdef-begin' and one '// cdef-end' after it"
        )
    parts = _INCLUDE.findall("\n".join(lines[begin[0] + 1 : end[0]]))
    try:
        return "\n".join((header.parent / part).read_text(encoding="utf-8") for part in parts)
    except OSError as error:
        raise LibraryMissingError(f"{header}: a part cannot be read ({error})") from None


def _package_folders() -> Iterator[Path]:
    # An editable install has two: the sources, and the folder the build put the library in.
    for folder in sys.modules[__name__.rpartition(".")[0]].__path__:
        yield Path(folder)


def _find_header() -> Path:
    folders = list(_package_folders())
    checkout = Path(__file__).resolve().parents[3] / "native"
    for folder in [*folders, checkout]:
        if (header := folder / "include" / HEADER).is_file():
            return header
    raise LibraryMissingError(
        f"{HEADER} is not in {folders[0]}: install the package with its native part"
    )


def library_path() -> Path:
    """Where the native library lies."""
    # LANEWISE_LIBRARY lets tests and sanitizer builds use a library that is not installed.
    if override := os.environ.get("LANEWISE_LIBRARY"):
        if not Path(override).is_file():
            raise LibraryMissingError(f"LANEWISE_LIBRARY: {override} is not a file")
        return Path(override).resolve()
    folders = list(_package_folders())
    for folder in folders:
        if (folder / LIBRARY).is_file():
            return folder / LIBRARY
    raise LibraryMissingError(
        f"{LIBRARY} is not in {folders[0]}: install the package with its native part"
    )
