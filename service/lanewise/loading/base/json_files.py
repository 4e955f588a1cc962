"""Reads JSON objects and their fields, with errors that name the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Self

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.mapped_file import lfs_hint

MAX_TEXT_BYTES = 256 << 20


def read_text(path: Path) -> str:
    """Return the contents of a UTF-8 text file."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise ModelFileError(
                f"{path}: {path.stat().st_size} bytes, above the limit of {MAX_TEXT_BYTES}"
            )
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def parse_object(text: str | bytes, source: str) -> dict[str, Any]:
    """Return a JSON object; strings must be valid UTF-8. ``source`` names it in errors."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ModelFileError(f"{source}: JSON nested too deeply") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ModelFileError(f"{source}: not UTF-8: {error.reason}") from error
    except ValueError as error:
        hint = lfs_hint(text.encode(errors="replace") if isinstance(text, str) else text)
        raise ModelFileError(f"{source}: not valid JSON: {error}{hint}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{source}: a {type(value).__name__}, where a JSON object is needed")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return parse_object(read_text(path), str(path))


class Fields:
    """Typed access to a JSON object or GGUF metadata, which remembers the fields that were read.

    ``meanings`` has the values of fields that a file leaves out; they precede a reader's default.
    """

    def __init__(
        self, values: Mapping[str, Any], source: str, meanings: Mapping[str, Any] | None = None
    ) -> None:
        self.values = values
        self.source = source
        self.meanings = meanings or {}
        self._read: set[str] = set()

    def key_of(self, name: str) -> str:
        """Return the file's key for a field; in JSON the same name."""
        return name

    def replacing(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with other values, which shares the record of fields read."""
        other = copy(self)
        other.values = {**self.values, **{self.key_of(name): values[name] for name in values}}
        return other

    def raw(self, name: str) -> Any:
        """Return a value unchecked; None if it is missing."""
        key = self.key_of(name)
        self._read.add(key)
        return self.values.get(key)

    def meant(self, name: str) -> Any:
        """Return a value, or its meaning if the file leaves it out; null stays None."""
        key, value = self.key_of(name), self.raw(name)
        return value if key in self.values else self.meanings.get(key)

    def ignore(self, *names: str) -> None:
        """Mark fields as read whose values do not matter or are known otherwise."""
        self._read.update(map(self.key_of, names))

    def unread(self) -> list[str]:
        """Return the keys of fields that were not read and are not null."""
        return [
            key for key, value in self.values.items() if key not in self._read and value is not None
        ]

    def refuse_unread(self) -> None:
        """Raise ModelFileError for a field not read, which might change the answers."""
        for key in self.unread():
            raise self.unknown(key)

    def unknown(self, name: str, others: Sequence[str] = ()) -> ModelFileError:
        """Return the error for an unsupported field; ``others`` are named with it."""
        also = f" (also: {', '.join(others)})" if others else ""
        key = self.key_of(name)
        unsupported = "unknown field that may change the answers"
        return ModelFileError(f"{self.source}: {key} is {self._shown(key)}; {unsupported}{also}")

    def fail(self, name: str, wanted: str) -> ModelFileError:
        """Return the error for a field; ``wanted`` says what is accepted."""
        key = self.key_of(name)
        if key not in self.values:
            return ModelFileError(f"{self.source}: {key} is missing; {wanted} is needed")
        return ModelFileError(f"{self.source}: {key} is {self._shown(key)}; {wanted} is needed")

    def _shown(self, key: str) -> str:
        shown = repr(self.values[key])
        return shown if len(shown) <= 80 else shown[:77] + "..."

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return an integer of at least ``least``; null counts as missing."""
        value = self.meant(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value < 2**31:
            raise self.fail(key, f"a whole number from {least} to {2**31 - 1}")
        return value

    def number(self, key: str, default: float | None = None, zero: bool = False) -> float:
        """Return a positive finite number in float32's range; null counts as missing.

        With ``zero``, 0 is accepted too.
        """
        value = self.meant(key)
        if value is None and default is not None:
            return default
        is_number = isinstance(value, int | float) and type(value) is not bool
        if not is_number or not (1e-37 <= value <= 3e38 or (zero and value == 0)):
            raise self.fail(key, "a positive finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; null counts as missing."""
        value = self.meant(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; null counts as missing."""
        value = self.meant(key)
        if value is None and default is not None:
            return default
        if type(value) is not str:
            raise self.fail(key, "a string")
        return value

    def is_set(self, key: str) -> bool:
        """Return whether a field is present and not null."""
        value = self.raw(key)
        return value is not None and not (isinstance(value, float) and math.isnan(value))
