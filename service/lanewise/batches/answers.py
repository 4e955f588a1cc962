"""The answers of a batch: a file to which whole lines are added, and which is the truth.

An answer is given when its line is on the disk. Where a process was killed, or the machine lost
power, the last lines may be torn: what is behind the last whole one is cut off when the file is
opened, and those requests are asked again. So each request has one line, whatever happens when.
"""

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lanewise.records.files import DiskFullError

Said = dict[str, Any]
BEGINNING = b'{"id":"batch_req_'  # of an answer in OpenAI's words


class NotAnswersError(Exception):
    """A file has something else than answers, or another writer; the message names it."""


class Answers:
    """One file of answers, open for more of them. Its methods wait for the disk."""

    def __init__(
        self, path: Path, note: Callable[[Said], None], *, may_be_foreign: bool = False
    ) -> None:
        """Open or make the file; ``note`` is told each answer that it has.

        A file that ``may_be_foreign`` is not changed if it has anything but answers, and the torn
        beginning of one: NotAnswersError.
        """
        self._may_be_foreign = may_be_foreign
        self.path = path
        self._lock = threading.Lock()
        self._is_open = True
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._hold()
            self.n_bytes = self._repair(note)
        except BaseException:
            self.close()
            raise

    def append(self, lines: Sequence[bytes]) -> None:
        """Add lines, which are on the disk when this returns; or none, and DiskFullError."""
        with self._lock:
            if self._is_open:
                self._append(lines)

    def _append(self, lines: Sequence[bytes]) -> None:
        left = memoryview(b"".join(lines))
        place = self.n_bytes
        try:
            while left:
                n_written = os.pwrite(self._number, left, place)
                left, place = left[n_written:], place + n_written
            os.fdatasync(self._number)
        except OSError as error:
            os.ftruncate(self._number, self.n_bytes)
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise DiskFullError from None
            raise
        self.n_bytes = place

    def close(self) -> None:
        """Close the file; nothing is added any more."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._number)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotAnswersError(f"{self.path} is written by another process") from None

    def _repair(self, note: Callable[[Said], None]) -> int:
        """Tell each answer, and cut off what is behind the last whole one; the bytes that stay."""
        n_whole = 0
        with os.fdopen(os.dup(self._number), "rb") as file:
            for text in file:
                said = _answer_in(text)
                if said is None:
                    if self._may_be_foreign and not _is_torn(text):
                        raise NotAnswersError(f"{self.path} has something else than answers")
                    break
                note(said)
                n_whole += len(text)
        if os.fstat(self._number).st_size > n_whole:
            os.ftruncate(self._number, n_whole)
            os.fsync(self._number)
        return n_whole


def _answer_in(text: bytes) -> Said | None:
    """The answer of a line, if it is whole."""
    if not text.endswith(b"\n"):
        return None
    try:
        said = json.loads(text)
    except ValueError:
        return None
    return said if isinstance(said, dict) and isinstance(said.get("custom_id"), str) else None


def _is_torn(text: bytes) -> bool:
    """Whether the last line of a file may be the beginning of an answer, or never written."""
    start = text.rstrip(b"\0")
    return not text.endswith(b"\n") and start[: len(BEGINNING)] == BEGINNING[: len(start)]
