"""The folder of the router's sockets and files: another router removes it where one was killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lanewise.settings import SettingsError

PREFIX = "lanewise-router-"
MAX_FOLDER = 90  # bytes: the system takes names of sockets of 107
MAX_ABOVE = MAX_FOLDER - len(f"/{PREFIX}12345678")
AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder for its user alone; those that killed routers left behind go first.

    A lock of the kernel says that a folder is in use. It ends with its process, and holds across
    containers that share a folder, where a number of a process says nothing.
    """
    above = Path(tempfile.gettempdir())
    if (length := len(os.fsencode(above))) > MAX_ABOVE:
        raise SettingsError(
            f"TMPDIR: {str(above)!r} has {length} bytes, and sockets below it none left; accepted:"
            f" at most {MAX_ABOVE}"
        )
    for path in above.glob(PREFIX + "*"):
        _remove_if_left(path)
    folder, lock = _locked()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Before the lock is there another router may remove it.
        with suppress(FileNotFoundError):
            lock = os.open(folder, AS_FOLDER)
            with suppress(OSError):  # without locks nothing is removed
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, lock
            os.close(lock)


def _remove_if_left(path: Path) -> None:
    try:
        lock = os.open(path, AS_FOLDER)
    except OSError:  # of another user, a link, or gone
        return
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:  # in use, or on a file system without locks
        pass
    finally:
        os.close(lock)
