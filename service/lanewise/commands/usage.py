"""``lanewise usage``: prints what keys have used, by day and model."""

import sys
from pathlib import Path

from lanewise.records.database import RecordsError
from lanewise.records.reports import as_csv, as_json
from lanewise.records.usage import rows_in
from lanewise.settings import SettingsError, UsageSettings


def run(settings: UsageSettings) -> int:
    """Print the report of a directory, which a server may be using."""
    if settings.data_dir is None:
        raise SettingsError("data_dir: not given; accepted: the directory that serve was given")
    try:
        rows = list(rows_in(Path(settings.data_dir), settings.first_day, settings.last_day))
    except RecordsError as error:
        raise SettingsError(f"data_dir: {error}") from None
    sys.stdout.write(as_csv(rows) if settings.format == "csv" else as_json(rows))
    return 0
