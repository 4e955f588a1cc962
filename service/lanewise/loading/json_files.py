"""Reads JSON objects and their fields with errors that name the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.checkpoint import ModelFileError

MAX_TEXT_BYTES = 256 << 20


def read_text(path: Path) -> str:
    """Return a UTF-8 text file."""
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
    """Return a JSON object, all strings of which have UTF-8; ``source`` names it in errors."""
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text)
        if "\\ud" in text or "\\uD" in text:  # perhaps half of a pair
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ModelFileError(f"{source}: JSON nested too deeply") from error
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ModelFileError(f"{source}: not UTF-8: {error.reason}") from error
    except ValueError as error:
        raise ModelFileError(f"{source}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{source}: a {type(value).__name__}, where a JSON object is needed")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    return parse_object(read_text(path), str(path))


class Fields:
    """Typed access to a JSON object or GGUF metadata."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def fail(self, key: str, wanted: str) -> ModelFileError:
        """Return the error for a field; ``wanted`` says what would be accepted."""
        if key not in self.values:
            return ModelFileError(f"{self.source}: {key} is missing; {wanted} is needed")
        shown = repr(self.values[key])
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ModelFileError(f"{self.source}: {key} is {shown}; {wanted} is needed")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number of at least ``least``; null counts as missing."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value < 2**31:
            raise self.fail(key, f"a whole number from {least} to {2**31 - 1}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number that a float32 can hold; null counts as missing."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or type(value) is bool or not 1e-37 <= value <= 3e38:
            raise self.fail(key, "a positive finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false; null counts as missing."""
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; null counts as missing."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not str:
            raise self.fail(key, "a string")
        return value

    def is_set(self, key: str) -> bool:
        """Return whether a field is there and not null."""
        value = self.values.get(key)
        return value is not None and not (isinstance(value, float) and math.isnan(value))
