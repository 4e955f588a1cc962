"""The rows of batches: what was asked for, where each is, and what came of it."""

import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lanewise.batches.lines import Fault
from lanewise.batches.work import Counts
from lanewise.records.database import Database, Part
from lanewise.records.files import FileStore, QuotaError, StoredFile

VALIDATING, IN_PROGRESS, FINALIZING = "validating", "in_progress", "finalizing"
COMPLETED, FAILED, EXPIRED = "completed", "failed", "expired"
CANCELLING, CANCELLED = "cancelling", "cancelled"
OPEN = (VALIDATING, IN_PROGRESS, FINALIZING, CANCELLING)
STATUSES = (*OPEN, COMPLETED, FAILED, EXPIRED, CANCELLED)
MAX_OPEN, MAX_KEPT = 100, 10_000  # batches of a key

BATCHES = Part(
    "batches",
    [
        """
        CREATE TABLE batches (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            form TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            metadata TEXT,
            output_keep_s INTEGER,
            status TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            in_progress_at INTEGER,
            finalizing_at INTEGER,
            completed_at INTEGER,
            failed_at INTEGER,
            expired_at INTEGER,
            cancelling_at INTEGER,
            cancelled_at INTEGER,
            total INTEGER NOT NULL DEFAULT 0,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            unanswered INTEGER NOT NULL DEFAULT 0,
            errors TEXT,
            output_file_id TEXT,
            error_file_id TEXT
        );
        CREATE INDEX batches_of_tenant ON batches (tenant, seq);
        CREATE INDEX batches_by_status ON batches (status);
        """
    ],
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a client wants of a batch."""

    tenant: str
    form: str
    endpoint: str
    input_file_id: str
    window: str
    window_s: int
    metadata: Mapping[str, str] | None = None
    output_keep_s: int | None = None
    total: int = 0  # requests, if they are counted already


Row = sqlite3.Row


class BatchTable:
    """The batches of all tenants. Any thread may use it; it waits for the disk."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, batch_id: str, asked: Asked) -> Row:
        """A new batch; QuotaError if its tenant has as many as it may."""
        now = int(time.time())
        with self.database.transaction() as tables:
            counted = tables.execute(
                f"SELECT count(*) AS n, sum(status IN {OPEN}) AS n_open FROM batches"
                " WHERE tenant = ?",
                (asked.tenant,),
            ).fetchone()
            for n, most, kind in (
                (counted["n_open"] or 0, MAX_OPEN, "unfinished batches"),
                (counted["n"], MAX_KEPT, "batches"),
            ):
                if n >= most:
                    raise QuotaError(f"the key has {n} {kind}; accepted: at most {most}")
            tables.execute(
                "INSERT INTO batches (id, tenant, form, endpoint, input_file_id,"
                " completion_window, metadata, output_keep_s, status, created_at, expires_at,"
                " total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(batch_id, asked.tenant, asked.form, asked.endpoint, asked.input_file_id),
                    asked.window,
                    None if asked.metadata is None else json.dumps(asked.metadata),
                    *(asked.output_keep_s, VALIDATING, now, now + asked.window_s, asked.total),
                ),
            )
        return self.get(batch_id)

    def get(self, batch_id: str) -> Row:
        """A batch that is there."""
        row = self.database.row("SELECT * FROM batches WHERE id = ?", batch_id)
        assert row is not None
        return row

    def find(self, tenant: str, form: str, batch_id: str) -> Row | None:
        """A batch, if it is the tenant's."""
        return self.database.row(
            "SELECT * FROM batches WHERE id = ? AND tenant = ? AND form = ?",
            *(batch_id, tenant, form),
        )

    def page(
        self, tenant: str, form: str, *, after: str | None, before: str | None = None, limit: int
    ) -> list[Row]:
        """Some batches of a tenant, the newest first; KeyError if ``after`` is none of them.

        With ``before`` they are the next newer ones of that batch.
        """
        place, order, beyond = 1 << 62, "DESC", "<"
        if (other := after or before) is not None:
            row = self.find(tenant, form, other)
            if row is None:
                raise KeyError(other)
            place = row["seq"]
            if after is None:
                order, beyond = "ASC", ">"
        rows = self.database.rows(
            f"SELECT * FROM batches WHERE tenant = ? AND form = ? AND seq {beyond} ?"
            f" ORDER BY seq {order} LIMIT ?",
            *(tenant, form, place, limit),
        )
        return sorted(rows, key=lambda row: -row["seq"])

    def open(self) -> list[Row]:
        """All batches that have not ended, the oldest first."""
        return self.database.rows(f"SELECT * FROM batches WHERE status IN {OPEN} ORDER BY seq")

    def counts(self) -> dict[str, int]:
        """How many batches have each status."""
        rows = self.database.rows("SELECT status, count(*) AS n FROM batches GROUP BY status")
        return {row["status"]: row["n"] for row in rows}

    def enter(self, batch_id: str, status: str, *before: str) -> bool:
        """Note that a batch is at a status, if it is at one of those ``before``; whether it was."""
        marks = ", ".join("?" * len(before))
        with self.database.transaction() as tables:
            done = tables.execute(
                f"UPDATE batches SET status = ?, {status}_at = ? WHERE id = ? AND status IN"
                f" ({marks})",
                (status, int(time.time()), batch_id, *before),
            )
            return done.rowcount > 0

    def note_counts(self, batch_id: str, counts: Counts) -> None:
        """Note how many requests were answered."""
        with self.database.transaction() as tables:
            tables.execute(
                "UPDATE batches SET total = ?, completed = ?, failed = ? WHERE id = ?",
                (counts.total, counts.completed, counts.failed, batch_id),
            )

    def fail(self, batch_id: str, faults: Sequence[Fault]) -> None:
        """End a batch whose requests cannot be read."""
        told = [
            {"code": f.code, "message": f.message, "line": f.line, "param": f.param} for f in faults
        ]
        with self.database.transaction() as tables:
            tables.execute(
                "UPDATE batches SET status = ?, failed_at = ?, errors = ? WHERE id = ?",
                (FAILED, int(time.time()), json.dumps(told), batch_id),
            )

    def end(
        self,
        row: Row,
        status: str,
        counts: Counts,
        files: FileStore,
        output: StoredFile | None,
        errors: StoredFile | None,
    ) -> None:
        """End a batch: its files, which lie in their places, and its status at once."""
        with self.database.transaction() as tables:
            for file in (output, errors):
                if file is not None:
                    files.add_finished(tables, file)
            tables.execute(
                f"UPDATE batches SET status = ?, {status}_at = ?, output_file_id = ?,"
                " error_file_id = ?, total = ?, completed = ?, failed = ?, unanswered = ?"
                " WHERE id = ?",
                (
                    *(status, int(time.time())),
                    *(None if file is None else file.id for file in (output, errors)),
                    *(counts.total, counts.completed, counts.failed, counts.unanswered, row["id"]),
                ),
            )

    def delete(self, batch_id: str) -> None:
        """Forget a batch that has ended."""
        with self.database.transaction() as tables:
            tables.execute("DELETE FROM batches WHERE id = ?", (batch_id,))

    def remove_older(self, days: float) -> None:
        """Forget batches that ended and were made so long ago."""
        with self.database.transaction() as tables:
            tables.execute(
                f"DELETE FROM batches WHERE status NOT IN {OPEN} AND created_at < ?",
                (int(time.time() - 86400 * days),),
            )


def new_id(form: str) -> str:
    """The id of a new batch."""
    prefix = "msgbatch_" if form == "anthropic" else "batch_"
    return prefix + secrets.token_hex(16)


def shown(row: Row) -> dict[str, Any]:
    """A batch as OpenAI's clients read it."""
    times = (
        *("created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at"),
        *("failed_at", "expired_at", "cancelling_at", "cancelled_at"),
    )
    errors = json.loads(row["errors"]) if row["errors"] else None
    return {
        "id": row["id"],
        "object": "batch",
        "endpoint": row["endpoint"],
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": row["input_file_id"],
        "completion_window": row["completion_window"],
        "status": row["status"],
        "output_file_id": row["output_file_id"],
        "error_file_id": row["error_file_id"],
        **{name: row[name] for name in times},
        "request_counts": {name: row[name] for name in ("total", "completed", "failed")},
        "metadata": json.loads(row["metadata"]) if row["metadata"] else None,
    }
