"""Keys from files, so that they are neither in the environment nor in a command line."""

import dataclasses
import logging
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may have in a minute and in a day (UTC); 0 = as much as it likes."""

    requests_per_minute: int = 0
    requests_per_day: int = 0
    tokens_per_minute: int = 0
    tokens_per_day: int = 0


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A line of a file with keys: the key, and what is said behind it."""

    key: str
    name: str | None = None  # by which reports call it
    limits: Mapping[str, int] = field(default_factory=dict)  # other than those of all keys


LIMITS = tuple(one.name for one in dataclasses.fields(Limits))


def key_lines(settings: Settings) -> list[KeyLine]:
    """Of ``api_key_file``; SettingsError if it cannot be used."""
    return _lines("api_key_file", settings.api_key_file)


def _read(name: str, file: str | None) -> tuple[str, ...]:
    return tuple(line.key for line in _lines(name, file))


def _lines(name: str, file: str | None) -> list[KeyLine]:
    if file is None:
        return []
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
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.strip().startswith("#"):
            continue
        lines.append(_line(line.strip(), f"{name}: {file}: line {number}"))
    if not lines:
        raise SettingsError(f"{name}: {file}: no keys; accepted: one a line, comments begin with #")
    named = Counter(line.name for line in lines if line.name is not None)
    if twice := next((one for one, count in named.items() if count > 1), None):
        raise SettingsError(f"{name}: {file}: two keys have the name {twice}; accepted: others")
    return lines


def _line(text: str, where: str) -> KeyLine:
    """A line's key and what it says; no error shows the key."""
    key, *words = text.split() if text.isprintable() else [""]
    given = dict(word.partition("=")[::2] for word in words)
    called = given.pop("name", None)
    limits = {
        word: int(value) for word, value in given.items() if value.isascii() and value.isdigit()
    }
    if not key or called == "" or len(limits) < len(given) or not limits.keys() <= {*LIMITS}:
        raise SettingsError(
            f"{where}: accepted: one key without blanks, and behind it name=TEXT and"
            f" {', '.join(f'{one}=N' for one in LIMITS)}"
        )
    return KeyLine(key, called, limits)


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
