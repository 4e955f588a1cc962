"""Counts what keys use, if that is kept or has limits."""

import logging
import sqlite3

from lanewise.api.http.keys import tenant_of
from lanewise.api.shared.spending import Spending
from lanewise.records.database import Database
from lanewise.records.usage import UsageStore
from lanewise.settings import LIMITS, Limits, Settings, SettingsError, key_lines

logger = logging.getLogger(__name__)


def make_spending(settings: Settings, records: Database | None) -> Spending | None:
    """As the settings and the lines of ``api_key_file`` say; None where nothing is counted."""
    usual = {name: getattr(settings, name) for name in LIMITS}
    lines = key_lines(settings)
    try:
        spending = Spending(
            Limits(**usual),
            {tenant_of(one.key): Limits(**usual | dict(one.limits)) for one in lines if one.limits},
            None if records is None else UsageStore(records),
            {tenant_of(one.key): one.name for one in lines if one.name is not None},
        )
    except sqlite3.Error as error:
        raise SettingsError(f"data_dir: {settings.data_dir}: {error}") from None
    if records is None and not spending.limits_any:
        return None
    if records is None:
        logger.warning("without data_dir a restart forgets what keys have used of their limits")
    return spending
