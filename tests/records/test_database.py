"""The database of a data directory: versions, transactions, one user at a time."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from lanewise.records.database import FILE, Database, Part, RecordsError
from lanewise.server.make_records import open_records
from lanewise.settings import Settings, SettingsError

FIRST = "CREATE TABLE things (name TEXT PRIMARY KEY);\nCREATE INDEX by_name ON things (name);"
SECOND = "ALTER TABLE things ADD COLUMN size INTEGER NOT NULL DEFAULT 7;"
THINGS = Part("things", [FIRST])


@pytest.fixture
def database(tmp_path):
    opened = Database(tmp_path / "data", [THINGS])
    yield opened
    opened.close()


def test_what_is_committed_is_there_after_opening_again(database, tmp_path):
    with database.transaction() as tables:
        tables.execute("INSERT INTO things VALUES ('one')")
    database.close()
    again = Database(tmp_path / "data", [THINGS])
    assert [row["name"] for row in again.rows("SELECT name FROM things")] == ["one"]
    again.close()


def test_a_block_that_raises_changes_nothing(database):
    def add_and_fail():
        with database.transaction() as tables:
            tables.execute("INSERT INTO things VALUES ('one')")
            raise KeyError

    with pytest.raises(KeyError):
        add_and_fail()
    assert database.row("SELECT name FROM things") is None


def test_older_tables_get_what_is_new_and_keep_their_rows(database, tmp_path):
    with database.transaction() as tables:
        tables.execute("INSERT INTO things VALUES ('one')")
    database.close()
    other = Part("others", ["CREATE TABLE others (id INTEGER);"])
    newer = Database(tmp_path / "data", [Part("things", [FIRST, SECOND]), other])
    assert [*newer.row("SELECT * FROM things")] == ["one", 7]
    assert newer.rows("SELECT * FROM others") == []
    newer.close()
    with pytest.raises(RecordsError, match=r"things has version 2.*newer server.*up to 1"):
        Database(tmp_path / "data", [THINGS])


def test_a_migration_that_fails_leaves_the_version_before(database, tmp_path):
    database.close()
    broken = Part("things", [FIRST, SECOND + "\nALTER TABLE absent ADD COLUMN x;"])
    with pytest.raises(RecordsError, match="no such table: absent"):
        Database(tmp_path / "data", [broken])
    again = Database(tmp_path / "data", [Part("things", [FIRST, SECOND])])
    assert again.rows("SELECT size FROM things") == []
    again.close()


def test_a_second_user_is_told_who_has_it(database, tmp_path):
    with pytest.raises(RecordsError, match=rf"data: process {os.getpid()} uses it"):
        Database(tmp_path / "data", [THINGS])


def test_what_is_no_database_is_an_error_with_its_path(tmp_path):
    (tmp_path / FILE).write_bytes(b"not a database, but a text " * 99)
    with pytest.raises(RecordsError, match=rf"{FILE}: file is not a database"):
        Database(tmp_path, [THINGS])


def test_threads_share_it(database):
    def add(first):
        for number in range(first, first + 25):
            with database.transaction() as tables:
                tables.execute("INSERT INTO things VALUES (?)", (str(number),))

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.row("SELECT count(*) FROM things")[0] == 75


WRITER = """
import sys
from pathlib import Path
from lanewise.records.database import Database, Part

database = Database(Path(sys.argv[1]), [Part("things", ["CREATE TABLE things (n INTEGER);"])])
for number in range(10**6):
    with database.transaction() as tables:
        tables.execute("INSERT INTO things VALUES (?)", (number,))
    print(number, flush=True)
"""


def test_a_process_that_is_killed_has_lost_nothing_that_it_committed(tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        said = [int(writer.stdout.readline()) for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        said += map(int, writer.stdout.read().split())
    part = Part("things", ["CREATE TABLE things (n INTEGER);"])
    again = Database(tmp_path, [part])
    kept = [row["n"] for row in again.rows("SELECT n FROM things ORDER BY n")]
    again.close()
    assert kept[: len(said)] == said
    assert len(kept) <= len(said) + 1


def test_a_full_disk_is_an_error_and_changes_nothing(database):
    database.rows("PRAGMA max_page_count = 8")
    with pytest.raises(sqlite3.OperationalError, match="full"), database.transaction() as tables:
        tables.execute("INSERT INTO things VALUES (?)", ("x" * 100_000,))
    assert database.row("SELECT name FROM things") is None
    with database.transaction() as tables:
        tables.execute("INSERT INTO things VALUES ('small')")


def test_a_data_dir_that_cannot_be_used_is_an_error_of_its_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"^data_dir: .*file"):
        open_records(Settings(data_dir=str(tmp_path / "file")))
    assert open_records(Settings()) is None
