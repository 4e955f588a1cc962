"""A toy server with a data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lanewise.records.database import Database
from lanewise.records.files import FileLimits, FileStore
from lanewise.server.make_records import PARTS
from toy_server import CONFIG, DEFAULTS, RunningServer, toy_server

KEYS = ("key-of-one", "key-of-another")


@contextmanager
def keeping_server(
    folder: Path, limits: FileLimits | None = None, config=CONFIG, settings=DEFAULTS, **options
) -> Iterator[RunningServer]:
    """Its files lie in ``folder``."""
    records = Database(folder, PARTS)
    files = FileStore(records, folder, limits or FileLimits())
    try:
        with toy_server(config, settings, records=records, files=files, **options) as running:
            yield running
    finally:
        records.close()
