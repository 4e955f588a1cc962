"""Read-only memory maps whose pages can be given back one range at a time."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

from lanewise.loading.checkpoint import ModelFileError


class MappedFile:
    """A file mapped read-only; views of it are zero-copy and stay valid until close."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # mmap's answer to a file of no bytes
            raise ModelFileError(f"{path}: the file is empty") from error
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.view = memoryview(self._map)
        self.size = len(self.view)

    def releaser(self, start: int, n_bytes: int) -> Callable[[], None]:
        """Return a function that drops the whole pages inside a range from memory."""
        page = mmap.PAGESIZE
        first = -(-start // page) * page
        last = (start + n_bytes) // page * page

        def release() -> None:
            if last > first and not self._map.closed:
                self._map.madvise(mmap.MADV_DONTNEED, first, last - first)

        return release

    def close(self) -> None:
        """Unmap the file, or leave that to the last view if somebody still holds one."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            return
