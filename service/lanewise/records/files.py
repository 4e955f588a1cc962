"""Files that clients have sent or that were made for them: bytes in a folder, the rest in a table.

A file lies under its id, which is made here: a name that a client gave is text in the table and
never a path. Files are written under another name, are on the disk before they are renamed, and are
renamed before their row is there; what has no row is removed when the store is opened.
"""

import errno
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from lanewise.records.database import Database, Part

FOLDER = "files"
HALF = ".half"  # behind the name of a file that is being written
DAY_S = 86400
# So much of a file system stays free: the database, logs and others need some.
LEFT_FREE = 64 << 20

FILES = Part(
    "files",
    [
        """
        CREATE TABLE files (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            name TEXT NOT NULL,
            purpose TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER
        );
        CREATE INDEX files_of_tenant ON files (tenant, seq);
        CREATE INDEX files_by_end ON files (expires_at);
        """
    ],
)


class QuotaError(Exception):
    """A key has as much as it may have; the message says what, and the setting."""


class TooLargeError(Exception):
    """A file is larger than any may be; the message says the most."""


class DiskFullError(Exception):
    """There is no room on the disk."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What each key may keep."""

    file_bytes: int = 512 << 20
    bytes: int = 10 << 30
    files: int = 10_000
    days: float = 30.0  # after which a file goes that says no other time; 0 = never


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file; times in seconds since 1970."""

    id: str
    tenant: str
    name: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None


class FileStore:
    """The files of all tenants. Any thread may use it; its methods wait for the disk."""

    def __init__(self, database: Database, folder: Path, limits: FileLimits) -> None:
        self.database, self.limits = database, limits
        self.folder = folder / FOLDER
        self._lock = threading.Lock()
        self._coming: Counter[str] = Counter()  # bytes that each tenant is sending
        self._n_coming: Counter[str] = Counter()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = {row["id"] for row in database.rows("SELECT id FROM files")}
        for path in self.folder.iterdir():
            if path.name not in known:
                path.unlink()

    def path_of(self, file_id: str) -> Path:
        """Where the bytes of a file lie that has a row."""
        return self.folder / file_id

    def find(self, tenant: str, file_id: str) -> StoredFile | None:
        """A file, if it is the tenant's and its time is not over."""
        row = self.database.row(
            "SELECT * FROM files WHERE id = ? AND tenant = ? AND coalesce(expires_at, ?) >= ?",
            *(file_id, tenant, now := int(time.time()), now),
        )
        return None if row is None else _file_of(row)

    def page(
        self,
        tenant: str,
        *,
        purpose: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        """Some files of a tenant, in the order they were made; KeyError if ``after`` is not one."""
        place = 0
        if after is not None:
            row = self.database.row(
                "SELECT seq FROM files WHERE id = ? AND tenant = ?", after, tenant
            )
            if row is None:
                raise KeyError(after)
            place = row["seq"]
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        place = place or (1 << 62 if newest_first else 0)
        rows = self.database.rows(
            f"SELECT * FROM files WHERE tenant = ? AND seq {beyond} ? AND purpose = "
            f"coalesce(?, purpose) AND coalesce(expires_at, ?) >= ? ORDER BY seq {order} LIMIT ?",
            *(tenant, place, purpose, now := int(time.time()), now, limit),
        )
        return [_file_of(row) for row in rows]

    def delete(self, tenant: str, file_id: str) -> bool:
        """Remove a file; whether it was there."""
        with _disk(), self.database.transaction() as tables:
            found = tables.execute(
                "DELETE FROM files WHERE id = ? AND tenant = ?", (file_id, tenant)
            ).rowcount
        if found:
            self.path_of(file_id).unlink(missing_ok=True)
        return bool(found)

    def remove_expired(self) -> int:
        """Remove the files whose time is over; how many."""
        with _disk(), self.database.transaction() as tables:
            rows = tables.execute(
                "DELETE FROM files WHERE expires_at < ? RETURNING id", (int(time.time()),)
            ).fetchall()
        for row in rows:
            self.path_of(row["id"]).unlink(missing_ok=True)
        return len(rows)

    def totals(self) -> tuple[int, int]:
        """Files and their bytes, of all tenants."""
        row = self.database.row("SELECT count(*), coalesce(sum(bytes), 0) FROM files")
        assert row is not None
        return row[0], row[1]

    def begin(self, tenant: str) -> "Incoming":
        """A file that is to be written; QuotaError if the tenant has as many as it may."""
        with self._lock:
            self._check_quota(tenant, 0, 1)
            self._n_coming[tenant] += 1
        try:
            return Incoming(self, tenant)
        except BaseException:
            self._forget_coming(tenant, 0)
            raise

    def add_finished(self, tables: sqlite3.Connection, file: StoredFile) -> None:
        """Add the row of a file whose bytes lie in their place, within a transaction."""
        tables.execute(
            "INSERT OR REPLACE INTO files (id, tenant, name, purpose, bytes, created_at,"
            " expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(file.id, file.tenant, file.name, file.purpose, file.bytes),
                *(file.created_at, file.expires_at),
            ),
        )

    def expiry(self, created_at: int, seconds: int | None) -> int | None:
        """When a file goes that is kept for so many seconds, or for as long as all are."""
        if seconds is None and not self.limits.days:
            return None
        return created_at + (int(self.limits.days * DAY_S) if seconds is None else seconds)

    def note_coming(self, tenant: str, n_bytes: int) -> None:
        """Count bytes before they are written; QuotaError if there are too many."""
        with self._lock:
            self._check_quota(tenant, n_bytes, 0)
            self._coming[tenant] += n_bytes
        if shutil.disk_usage(self.folder).free - n_bytes < LEFT_FREE:
            raise DiskFullError

    def _check_quota(self, tenant: str, n_bytes: int, n_files: int) -> None:
        row = self.database.row(
            "SELECT count(*) AS n, coalesce(sum(bytes), 0) AS total FROM files WHERE tenant = ?",
            tenant,
        )
        assert row is not None
        most = self.limits
        if n_files and row["n"] + self._n_coming[tenant] + n_files > most.files:
            raise QuotaError(f"the key has {row['n']} files; accepted: {most.files} (max_files)")
        if row["total"] + self._coming[tenant] + n_bytes > most.bytes:
            raise QuotaError(
                f"the key has files of {row['total']} bytes; accepted: {most.bytes} bytes in all"
                " (file_quota)"
            )

    def _forget_coming(self, tenant: str, n_bytes: int) -> None:
        with self._lock:
            self._n_coming[tenant] -= 1
            self._coming[tenant] -= n_bytes


class Incoming:
    """A file that is being written. It counts for its tenant from its first byte on."""

    def __init__(self, store: FileStore, tenant: str) -> None:
        self.id = f"file-{secrets.token_hex(16)}"
        self._store, self._tenant = store, tenant
        self.path = store.folder / (self.id + HALF)
        self.n_bytes = 0
        with _disk():
            self._file: BinaryIO | None = self.path.open("xb", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes) -> None:
        """Add bytes; TooLargeError, QuotaError or DiskFullError if they cannot be kept."""
        assert self._file is not None
        most = self._store.limits.file_bytes
        if self.n_bytes + len(data) > most:
            raise TooLargeError(f"the file has more than {most} bytes (max_file_bytes)")
        self._store.note_coming(self._tenant, len(data))
        self.n_bytes += len(data)
        with _disk():
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def finish(self, name: str, purpose: str, keep_s: int | None) -> StoredFile:
        """Give the file its name; it is there, on the disk, when this returns."""
        assert self._file is not None
        created = int(time.time())
        file = StoredFile(
            *(self.id, self._tenant, name, purpose, self.n_bytes, created),
            self._store.expiry(created, keep_s),
        )
        with _disk():
            os.fsync(self._file.fileno())
            self.path.rename(self._store.path_of(self.id))
            sync_folder(self._store.folder)
            try:
                with self._store.database.transaction() as tables:
                    self._store.add_finished(tables, file)
            except BaseException:
                self._store.path_of(self.id).unlink(missing_ok=True)
                raise
        return file

    def close(self) -> None:
        """Forget it, if it was not finished."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.path.unlink(missing_ok=True)
            self._store._forget_coming(self._tenant, self.n_bytes)


def place_copy(source: Path, target: Path) -> None:
    """Have the bytes of a file in a second place too, which outlives the first."""
    with _disk():
        with suppress(FileExistsError):
            try:
                os.link(source, target)
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.EMLINK):
                    raise
                half = target.with_name(target.name + HALF)
                shutil.copyfile(source, half)
                half.rename(target)
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove_unknown_folders(folder: Path, known: Collection[str]) -> None:
    """Remove the folders in a folder that nothing knows."""
    for path in folder.iterdir():
        if path.name not in known:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _disk() -> Iterator[None]:
    """Raise DiskFullError where the system or the database says that the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError from None
        raise
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise DiskFullError from None
        raise


def _file_of(row: sqlite3.Row) -> StoredFile:
    names = ("id", "tenant", "name", "purpose", "bytes", "created_at", "expires_at")
    return StoredFile(*(row[name] for name in names))
