"""Opens the database of ``data_dir``, with the tables of every subject that keeps some."""

from collections.abc import Sequence
from pathlib import Path

from lanewise.records.database import Database, Part, RecordsError
from lanewise.settings import Settings, SettingsError

# A new subject is a line here; what has been released never changes (``database.py``).
PARTS: Sequence[Part] = ()


def open_records(settings: Settings) -> Database | None:
    """The database; None where there is no ``data_dir``. SettingsError if it cannot be used."""
    if settings.data_dir is None:
        return None
    try:
        return Database(Path(settings.data_dir).absolute(), PARTS)
    except RecordsError as error:
        raise SettingsError(f"data_dir: {error}") from None
