"""Output that is written in any order, survives interruption, and appears at once when it is whole.

Beside the output lies NAME.partial: the weights file at its full size, plan.json with what is being
made of what, and done.jsonl with a line for each tensor that is finished.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from lanewise.host import format_size
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.writing.packed_writer import errors_named

PLAN, DONE = "plan.json", "done.jsonl"


def write_all(file: int, data: memoryview, offset: int, path: Path) -> None:
    """Write all of some bytes to a place of an open file; ``path`` is for the error."""
    while data.nbytes:
        with errors_named(path):
            written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def partial_folder(output: Path) -> Path:
    """Return where an output lies until it is whole."""
    return output.with_name(output.name + ".partial")


def plan_begun(output: Path) -> Mapping[str, Any]:
    """Return what an earlier run was making ``output`` of; empty where none was."""
    try:
        found = json.loads((partial_folder(output) / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: killed while it was written
        return {}
    return found if isinstance(found, dict) else {}


class PartialOutput:
    """A folder NAME.partial that becomes the output; use it as a context manager.

    Leaving the block without :meth:`finish` keeps what is done, for a run with the same plan.
    """

    def __init__(self, output: Path, weights: str, plan: Mapping[str, Any], size: int) -> None:
        """Begin or go on writing ``output``; ``weights`` is a file of ``size`` bytes in it.

        ModelFileError when it is being written by another process, or half written by another plan.
        """
        self.output = output
        self.folder = partial_folder(output)
        self.weights = self.folder / weights
        self.done: dict[str, int] = {}  # finished tensors and their checksums
        is_new = not (self.folder / PLAN).exists()
        with ExitStack() as opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._plan_file = (self.folder / PLAN).open("a+", encoding="utf-8")
            opened.enter_context(self._plan_file)
            self._lock_plan()
            if is_new:
                opened.callback(self.discard)
            self._check_plan(plan)
            self._file = os.open(self.weights, os.O_RDWR | os.O_CREAT, 0o666)
            opened.callback(os.close, self._file)
            self._reserve(size)
            self._read_done()
            self._journal = (self.folder / DONE).open("a", encoding="utf-8")
            opened.pop_all()

    def _lock_plan(self) -> None:
        try:
            fcntl.flock(self._plan_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelFileError(f"{self.folder}: another process is writing this model") from None

    def _check_plan(self, plan: Mapping[str, Any]) -> None:
        self._plan_file.seek(0)
        text = self._plan_file.read()
        try:
            found = json.loads(text) if text else None
        except ValueError:  # killed while it was written: nothing was done yet
            found = None
        if found is None:
            with errors_named(self.folder / PLAN):
                self._plan_file.truncate(0)
                self._plan_file.write(json.dumps(plan))
                self._plan_file.flush()
            (self.folder / DONE).unlink(missing_ok=True)
        elif found != json.loads(json.dumps(plan)):
            odd = [key for key in plan if found.get(key) != json.loads(json.dumps(plan[key]))]
            raise ModelFileError(
                f"{self.folder}: holds a model half written with other {' and '.join(odd)};"
                " go on with those, or delete the folder"
            )

    def _reserve(self, size: int) -> None:
        """Take the space at once, so that a full disk shows now and not after an hour."""
        missing = size - os.fstat(self._file).st_size
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            text = f"{format_size(missing)} are needed and {format_size(free)} free"
            raise OSError(errno.ENOSPC, text, str(self.folder))
        try:
            os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.weights)) from None

    def _read_done(self) -> None:
        path = self.folder / DONE
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):  # otherwise killed while writing it
                entry = json.loads(line)
                self.done[entry["name"]] = int(entry["checksum"], 16)
        # what an interrupted line left would otherwise be the beginning of the next
        lines = [self._line(name, checksum) for name, checksum in self.done.items()]
        path.write_text("".join(lines), encoding="utf-8")

    @staticmethod
    def _line(name: str, checksum: int) -> str:
        return json.dumps({"name": name, "checksum": f"{checksum:016x}"}) + "\n"

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes of the weights file."""
        write_all(self._file, data, offset, self.weights)

    def read(self, size: int, offset: int) -> bytes:
        """Read bytes of the weights file."""
        return os.pread(self._file, size, offset)

    def mark_done(self, name: str, checksum: int) -> None:
        """Remember that all bytes of a tensor are written."""
        self.done[name] = checksum
        with errors_named(self.folder / DONE):
            self._journal.write(self._line(name, checksum))
            self._journal.flush()

    def forget(self, name: str) -> None:
        """Have a tensor made again whose bytes are not those that were written."""
        del self.done[name]

    def finish(self) -> None:
        """Make the folder the output, in one step."""
        os.fsync(self._file)
        for name in (PLAN, DONE):
            (self.folder / name).unlink()
        self.folder.rename(self.output)
        self._sync_parent()

    def finish_file(self) -> None:
        """Make the weights file alone the output, in one step."""
        os.fsync(self._file)
        self.weights.rename(self.output)
        self._sync_parent()
        self.discard()

    def _sync_parent(self) -> None:
        parent = os.open(self.output.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)

    def discard(self) -> None:
        """Delete what there is."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> PartialOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        self._journal.close()
        self._plan_file.close()
