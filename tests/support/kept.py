"""A toy server with a data directory."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lanewise.api.shared.spending import Spending
from lanewise.records.database import Database
from lanewise.records.files import FileLimits, FileStore
from lanewise.server.make_records import PARTS
from toy_server import CONFIG, DEFAULTS, RunningServer, toy_server

KEYS = ("key-of-one", "key-of-another")


@contextmanager
def keeping_server(
    folder: Path,
    limits: FileLimits | None = None,
    config=CONFIG,
    settings=DEFAULTS,
    spending_of: Callable[[Database], Spending] | None = None,
    **options,
) -> Iterator[RunningServer]:
    """Its files lie in ``folder``; ``spending_of`` its database makes what counts."""
    records = Database(folder, PARTS)
    if spending_of is not None:
        options["spending"] = spending_of(records)
    files = FileStore(records, folder, limits or FileLimits())
    try:
        with toy_server(config, settings, records=records, files=files, **options) as running:
            yield running
    finally:
        records.close()
