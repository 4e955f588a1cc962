"""Opens the database of ``data_dir``, with the tables of every subject that keeps some."""

from collections.abc import Sequence
from pathlib import Path

from lanewise.batches.table import BATCHES
from lanewise.records.database import Database, Part, RecordsError
from lanewise.records.files import FILES, FileLimits, FileStore
from lanewise.records.usage import USAGE
from lanewise.settings import Settings, SettingsError

# A new subject is a line here; what has been released never changes (``database.py``).
PARTS: Sequence[Part] = (FILES, BATCHES, USAGE)


def open_records(settings: Settings) -> Database | None:
    """The database; None where there is no ``data_dir``. SettingsError if it cannot be used."""
    if settings.data_dir is None:
        return None
    try:
        return Database(Path(settings.data_dir).absolute(), PARTS)
    except RecordsError as error:
        raise SettingsError(f"data_dir: {error}") from None


def open_files(settings: Settings, records: Database | None) -> FileStore | None:
    """The files of the same directory."""
    if records is None or settings.data_dir is None:
        return None
    limits = FileLimits(
        settings.max_file_bytes, settings.file_quota, settings.max_files, settings.file_days
    )
    try:
        return FileStore(records, Path(settings.data_dir).absolute(), limits)
    except OSError as error:
        raise SettingsError(f"data_dir: {error.filename}: {error.strerror}") from None
