"""Read-only memory maps whose pages can be given back one range at a time."""

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

from lanewise.loading.checkpoint import ModelFileError

HUGE_PAGE = 2 << 20
LFS_POINTER = b"version https://git-lfs"


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Free what it holds."""


def close_all(files: Iterable[Closable]) -> None:
    """Unmap all files."""
    for file in files:
        file.close()


@dataclass(slots=True)
class Mapping:
    """What is known of a file that is mapped: as it was when that began."""

    path: Path
    file: tuple[int, int]  # device and inode
    state: tuple[int, int]  # size, and time of the last change in nanoseconds
    at_end: list[Callable[[], object]] = field(default_factory=list)  # called when it is unmapped

    def is_changed(self) -> bool:
        """Whether somebody has written to the file, or cut it, since it was mapped.

        One that another file has taken the place of, by rename, goes on as it was.
        """
        try:
            now = os.stat(self.path)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == self.file and _state_of(now) != self.state


_mappings: WeakKeyDictionary[mmap.mmap, Mapping] = WeakKeyDictionary()


def mappings() -> list[tuple[mmap.mmap, Mapping]]:
    """All files that are mapped now, also those that were closed while somebody views them."""
    return list(_mappings.items())


def changed_files(of: Collection[Path] | None = None) -> list[str]:
    """Paths of those that somebody has written to, or cut, since they were mapped.

    ``of`` are the files that are meant, and directories of such; None: all.
    """
    paths = [mapping.path for _, mapping in mappings() if mapping.is_changed()]
    return [str(path) for path in paths if of is None or any(map(path.is_relative_to, of))]


def lfs_hint(start: bytes) -> str:
    """Return what to say of a file that only says where another one is kept; else nothing."""
    if not start.startswith(LFS_POINTER):
        return ""
    return " (it is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches)"


def _state_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _open_at_once(path: str, flags: int) -> int:
    # A pipe without a writer would make us wait for one.
    return os.open(path, flags | os.O_NONBLOCK)


class MappedFile:
    """A file mapped read-only; views of it are zero-copy and stay valid until close."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb", opener=_open_at_once) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ModelFileError(f"{path}: not a file, but a pipe, device or socket")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # mmap's answer to a file of no bytes
            raise ModelFileError(f"{path}: the file is empty") from error
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.view = memoryview(self._map)
        self.size = len(self.view)
        _mappings[self._map] = Mapping(path, (status.st_dev, status.st_ino), _state_of(status))

    def releaser(self, start: int, n_bytes: int) -> Callable[[], None]:
        """Return a function that drops the whole pages inside a range from memory."""
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        last = (start + n_bytes) // page * page

        def release() -> None:
            if last > first and not self._map.closed:
                self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

        return release

    def is_on_huge_pages(self) -> bool:
        """Ask for huge pages and read a byte of each; whether the system gave most of them.

        File systems whose page cache has large folios (ext4 since Linux 6.16, xfs since 5.18) do,
        if the file was read from disk or written in large blocks.
        """
        with suppress(AttributeError, OSError):  # Python or kernel without them
            self._map.madvise(mmap.MADV_HUGEPAGE)
        sum(self.view[at] for at in range(0, self.size, HUGE_PAGE))
        return 2 * self._huge_bytes() >= self.size

    def _huge_bytes(self) -> int:
        """Bytes of mappings of this file that are on huge pages, from /proc/self/smaps."""
        found, is_ours = 0, False
        with suppress(OSError), open("/proc/self/smaps", encoding="utf-8") as lines:
            for line in lines:
                field, *values = line.split()
                if not field.endswith(":"):  # the first line of a mapping ends with its file
                    is_ours = line.rstrip("\n").endswith(str(self.path.resolve()))
                elif is_ours and field == "FilePmdMapped:":
                    found += int(values[0]) << 10
        return found

    def close(self) -> None:
        """Unmap the file, or leave that to the last view if somebody still holds one."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            return
        mapping = _mappings.pop(self._map, None)
        for act in [] if mapping is None else mapping.at_end:
            act()
