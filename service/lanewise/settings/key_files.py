"""Keys from files, so that they are neither in the environment nor in a command line."""

import dataclasses
import logging
import stat
from pathlib import Path

from lanewise.settings.kinds import SettingsError
from lanewise.settings.knobs import Settings

logger = logging.getLogger(__name__)

LEAST_SECRET = 16  # bytes


def with_keys_of_files(settings: Settings) -> Settings:
    """The settings with the keys of ``api_key_file`` and ``admin_api_key_file`` beside the others.

    Raises SettingsError, which never shows a key, if a file cannot be used or a key is in both.
    """
    users = settings.api_key + _read("api_key_file", settings.api_key_file)
    admins = settings.admin_api_key + _read("admin_api_key_file", settings.admin_api_key_file)
    if set(users) & set(admins):
        raise SettingsError("admin_api_key: one of these keys is an api_key too; accepted: others")
    return dataclasses.replace(
        settings, api_key=tuple(dict.fromkeys(users)), admin_api_key=tuple(dict.fromkeys(admins))
    )


def _read(name: str, file: str | None) -> tuple[str, ...]:
    if file is None:
        return ()
    path = Path(file)
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{name}: {file}: not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(f"{name}: {file}: {error.strerror}") from None
    if mode & stat.S_IRWXO:
        logger.warning("%s: every user of this machine can read %s; chmod o= it", name, file)
    keys = []
    for number, line in enumerate(text.split("\n"), 1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not key.isprintable() or " " in key:
            raise SettingsError(f"{name}: {file}: line {number}: accepted: one key, without blanks")
        keys.append(key)
    if not keys:
        raise SettingsError(f"{name}: {file}: no keys; accepted: one a line, comments begin with #")
    return tuple(keys)


def store_secret(settings: Settings) -> bytes:
    """What ``kv_store_key_file`` holds, or nothing; SettingsError if it cannot be used."""
    file = settings.kv_store_key_file
    if file is None:
        return b""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"kv_store_key_file: {file}: {error.strerror}") from None
    if len(secret) < LEAST_SECRET:
        raise SettingsError(
            f"kv_store_key_file: {file} has {len(secret)} bytes; accepted: at least {LEAST_SECRET}"
        )
    return secret
