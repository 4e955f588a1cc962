"""Read-only memory maps whose pages can be released range by range."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

from lanewise.loading.base.checkpoint import ModelFileError

HUGE_PAGE = 2 << 20
LFS_POINTER = b"version https://git-lfs"


class Closable(Protocol):
    """An object with ``close``."""

    def close(self) -> None:
        """Free its resources."""


def close_all(files: Iterable[Closable]) -> None:
    """Unmap all files."""
    for file in files:
        file.close()


@dataclass(slots=True)
class Mapping:
    """A mapped file's identity and state when it was mapped."""

    path: Path
    file: tuple[int, int]  # device and inode
    state: tuple[int, int]  # size in bytes, and mtime in nanoseconds
    at_end: list[Callable[[], object]] = field(default_factory=list)  # called at unmapping

    def is_changed(self) -> bool:
        """Whether the file was written to or truncated after it was mapped.

        A file that was replaced by a rename is unchanged: its mapping keeps the old contents.
        """
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self.file and _state_of(now) != self.state


_mappings: WeakKeyDictionary[mmap.mmap, Mapping] = WeakKeyDictionary()


def mappings() -> list[tuple[mmap.mmap, Mapping]]:
    """All files that are mapped now, including closed ones of which a view is still open."""
    return list(_mappings.items())


def changed_files(of: Collection[Path] | None = None) -> list[str]:
    """Paths of mapped files that were written to or truncated after they were mapped.

    ``of`` limits the check to these files and to files in these directories; None: all.
    """
    paths = [mapping.path for _, mapping in mappings() if mapping.is_changed()]
    return [str(path) for path in paths if of is None or any(map(path.is_relative_to, of))]


def lfs_hint(start: bytes) -> str:
    """Return a hint if a file is a pointer of Git LFS or a similar stub, else ""."""
    if not start.startswith(LFS_POINTER):
        return ""
    return " (it is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches)"


def _state_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _open_at_once(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe that has no writer would wait for one.
    return os.open(path, flags | os.O_NONBLOCK)


class MappedFile:
    """A file mapped read-only; views of it are zero-copy and valid until close."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelFileError(f"{path}: not a file, but a pipe, device or socket")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # mmap's error for an empty file
            raise ModelFileError(f"{path}: the file is empty") from error
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.view = memoryview(self._map)
        self.size = len(self.view)
        _mappings[self._map] = Mapping(path, (status.st_dev, status.st_ino), _state_of(status))

    def releaser(self, start: int, n_bytes: int) -> Callable[[], None]:
        """Return a function that drops the whole pages inside a byte range from memory."""
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        last = (start + n_bytes) // page * page

        def release() -> None:
            if last > first and not self._map.closed:
                self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

        return release

    def is_on_huge_pages(self) -> bool:
        """Ask for huge pages and touch each one; returns whether the system gave most of them.

        File systems with large folios in the page cache (ext4 since Linux 6.16, xfs since 5.18) do,
        if the file was read from disk or written in large blocks.
        """
        with suppress(AttributeError, OSError):  # this Python or kernel has none
            self._map.madvise(mmap.MADV_HUGEPAGE)
        sum(self.view[at] for at in range(0, self.size, HUGE_PAGE))
        return 2 * self._huge_bytes() >= self.size

    def _huge_bytes(self) -> int:
        """Bytes of this file's mappings on huge pages, from /proc/self/smaps."""
        found, is_ours = 0, False
        with suppress(OSError), open("/proc/self/smaps", encoding="utf-8") as lines:
            for line in lines:
                field, *values = line.split()
                if not field.endswith(":"):  # the first line of a mapping ends with the file's name
                    is_ours = line.rstrip("\n").endswith(str(self.path.resolve()))
                elif is_ours and field == "FilePmdMapped:":
                    found += int(values[0]) << 10
        return found

    def close(self) -> None:
        """Unmap the file, or leave that to the last open view."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            return
        mapping = _mappings.pop(self._map, None)
        for act in [] if mapping is None else mapping.at_end:
            act()
