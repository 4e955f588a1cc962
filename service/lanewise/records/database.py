"""The database of a data directory: opening it, its versions, and one transaction at a time.

Each subject that keeps tables is a ``Part``: a name, and the scripts that bring its tables from one
version to the next. Parts know nothing of each other, and each has a version of its own. A part
that has been released changes by a new script behind its others, never by a changed one.
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

FILE = "lanewise.sqlite3"
LOCK = "lock"
BUSY_S = 10.0  # for which another program, such as a backup, may lock the file
_VERSIONS = "CREATE TABLE IF NOT EXISTS part_versions (part TEXT PRIMARY KEY, version INTEGER)"


class RecordsError(Exception):
    """The data directory cannot be used; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """The tables of one subject; ``migrations[n]`` brings them from version n to n + 1."""

    name: str
    migrations: Sequence[str]


class Database:
    """SQLite in write-ahead mode. What was committed is on the disk.

    Any thread may use it; one transaction runs at a time, so none ever waits for a lock of another
    and fails. A transaction takes milliseconds, for it waits for the disk: event loops have it run
    in a thread. A second process is refused the directory for as long as it is open here.
    """

    def __init__(self, folder: Path, parts: Sequence[Part]) -> None:
        """Open or make the database in ``folder`` and bring its tables up to date."""
        self._lock = threading.RLock()
        self._held: TextIO | None = None
        path = folder / FILE
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = _only_user(folder)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.row_factory = sqlite3.Row
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            self._connection.execute(_VERSIONS)
            for part in parts:
                self._bring_up_to_date(part, path)
        except (OSError, sqlite3.Error) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise RecordsError(f"{path}: {reason}") from None
        except RecordsError:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything in the block or, if it raises, nothing; sqlite3.Error if it cannot be kept."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """What a query finds; its columns have names."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> sqlite3.Row | None:
        """The first row that a query finds."""
        with self._lock:
            found: sqlite3.Row | None = self._connection.execute(query, values).fetchone()
            return found

    def close(self) -> None:
        """Close it; another process may have the directory then."""
        with self._lock:
            if hasattr(self, "_connection"):
                self._connection.close()
            if self._held is not None:
                self._held.close()
                self._held = None

    def _bring_up_to_date(self, part: Part, path: Path) -> None:
        with self.transaction() as connection:
            found = connection.execute(
                "SELECT version FROM part_versions WHERE part = ?", (part.name,)
            ).fetchone()
            version, newest = (found["version"] if found else 0), len(part.migrations)
            if version > newest:
                raise RecordsError(
                    f"{path}: {part.name} has version {version}, of a newer server; accepted: up"
                    f" to {newest}"
                )
            for script in part.migrations[version:]:
                # Connection.executescript would commit before it.
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(
                "INSERT INTO part_versions VALUES (?, ?) "
                "ON CONFLICT (part) DO UPDATE SET version = excluded.version",
                (part.name, newest),
            )


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; each ends at the end of a line."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement


def _only_user(folder: Path) -> TextIO:
    """The open file that keeps other servers out of the directory."""
    held = (folder / LOCK).open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.seek(0)
        user = held.read().strip()
        held.close()
        who = f"process {user}" if user else "another process"
        raise RecordsError(
            f"{folder}: {who} uses it; accepted: a data_dir for each server"
        ) from None
    held.truncate(0)
    held.write(f"{os.getpid()}\n")
    held.flush()
    return held
