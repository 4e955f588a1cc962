"""What keys have used: requests and tokens by day (UTC), key and model; and of the last minute.

Counts are added up in memory first (``api/shared/spending.py``) and come here together.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Self

from lanewise.records.database import FILE, Database, Part, RecordsError

USAGE = Part(
    "usage",
    [
        """
        CREATE TABLE usage (
            day TEXT NOT NULL,
            tenant TEXT NOT NULL,
            model TEXT NOT NULL,
            requests INTEGER NOT NULL,
            prompt_tokens INTEGER NOT NULL,
            cached_tokens INTEGER NOT NULL,
            completion_tokens INTEGER NOT NULL,
            PRIMARY KEY (day, tenant, model)
        ) WITHOUT ROWID;
        CREATE TABLE usage_names (tenant TEXT PRIMARY KEY, name TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE usage_minutes (
            tenant TEXT PRIMARY KEY,
            minute INTEGER NOT NULL,
            requests INTEGER NOT NULL,
            tokens INTEGER NOT NULL
        ) WITHOUT ROWID;
        """
    ],
)
_ADD = """
    INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (day, tenant, model) DO UPDATE SET
        requests = requests + excluded.requests,
        prompt_tokens = prompt_tokens + excluded.prompt_tokens,
        cached_tokens = cached_tokens + excluded.cached_tokens,
        completion_tokens = completion_tokens + excluded.completion_tokens
"""
_SUMS = """
    SELECT usage.*, name FROM usage LEFT JOIN usage_names USING (tenant)
    WHERE day BETWEEN ? AND ? AND (? IS NULL OR tenant = ?) ORDER BY day, tenant, model
    LIMIT ?
"""
FIRST, LAST = "0000-01-01", "9999-12-31"


class Place(NamedTuple):
    """Where something is counted."""

    day: str  # YYYY-MM-DD
    tenant: str
    model: str


@dataclass(slots=True)
class Used:
    """Requests and tokens."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Read and written."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, other: Self) -> None:
        """Count something else too."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


class Minute(NamedTuple):
    """What a key has used in one minute."""

    minute: int  # since 1970
    requests: int
    tokens: int


class Row(NamedTuple):
    """A line of a report."""

    day: str
    key: str  # its name where it has one, else the first characters of its tenant
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageStore:
    """The tables of a server's database; sqlite3.Error where something cannot be kept or read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, counts: Mapping[Place, Used], minutes: Mapping[str, Minute]) -> None:
        """Add counts to those that are there; minutes replace what was known of their keys."""
        with self._database.transaction() as connection:
            for place, used in counts.items():
                values = (getattr(used, one.name) for one in fields(used))
                connection.execute(_ADD, (*place, *values))
            for tenant, minute in minutes.items():
                connection.execute(
                    "INSERT OR REPLACE INTO usage_minutes VALUES (?, ?, ?, ?)", (tenant, *minute)
                )

    def name(self, names: Mapping[str, str]) -> None:
        """Know keys by these names from now on."""
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO usage_names VALUES (?, ?)", list(names.items())
            )

    def of_day(self, day: str) -> dict[str, Used]:
        """What each key has used on a day, of all models."""
        found: dict[str, Used] = {}
        for row in self._database.rows("SELECT * FROM usage WHERE day = ?", day):
            used = Used(*(row[one.name] for one in fields(Used)))
            found.setdefault(row["tenant"], Used()).add(used)
        return found

    def minutes(self) -> dict[str, Minute]:
        """The last minute of each key."""
        rows = self._database.rows("SELECT * FROM usage_minutes")
        return {row["tenant"]: Minute(*tuple(row)[1:]) for row in rows}

    def rows(self, first: str | None, last: str | None, tenant: str | None, most: int) -> list[Row]:
        """At most so many lines from one day to another, of one key or of all."""
        found = self._database.rows(_SUMS, first or FIRST, last or LAST, tenant, tenant, most)
        return list(map(_row, found))


def rows_in(folder: Path, first: str | None, last: str | None) -> Iterator[Row]:
    """The same of a directory that a server may be using; RecordsError if it cannot be read."""
    path = folder / FILE
    if not path.is_file():
        raise RecordsError(f"{path}: no such file")
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            connection.row_factory = sqlite3.Row
            yield from map(
                _row, connection.execute(_SUMS, (first or FIRST, last or LAST, None, None, -1))
            )
    except sqlite3.Error as error:
        raise RecordsError(f"{path}: {error}") from None


def _row(found: sqlite3.Row) -> Row:
    key = found["name"] or found["tenant"][:12] or "none"
    return Row(found["day"], key, *(found[name] for name in Row._fields[2:]))
