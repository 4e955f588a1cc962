"""How the text of a setting becomes a value."""

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit


class SettingsError(Exception):
    """A setting that cannot be used; the message names source, value and what is accepted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of a setting becomes a value."""

    parse: Callable[[str], object]
    accepts: str
    metavar: str
    is_list: bool = False
    is_switch: bool = False
    is_secret: bool = False  # its text is never shown


def _checked(parse: Callable[[str], Any], ok: Callable[[Any], bool]) -> Callable[[str], object]:
    def parse_and_check(text: str) -> object:
        value = parse(text)
        if not ok(value):
            raise ValueError(text)
        return value

    return parse_and_check


def integer(low: int, high: int | None = None) -> Kind:
    """A whole number between two limits, both included."""
    upper = float("inf") if high is None else high
    accepts = f"a whole number from {low} to {high}" if high is not None else f"at least {low}"
    return Kind(_checked(int, lambda value: low <= value <= upper), accepts, "N")


def choice(*names: str) -> Kind:
    """One of a few names, in any case."""
    yaml = {"true": "on", "false": "off"}  # what YAML makes of on and off without quotes

    def parse(text: str) -> str:
        lower = text.lower()
        return lower if lower in names else yaml.get(lower, lower)

    return Kind(_checked(parse, names.__contains__), " | ".join(names), "NAME")


CACHES = Kind(
    choice("f16", "f32", "int8", "k8v4", "q4").parse,
    "f16, f32, int8, k8v4 and q4, commas between",
    "TYPE,…",
    is_list=True,
)
LOADED_AS = Kind(choice("q8_0", "q4_0").parse, "q8_0 and q4_0, commas between", "NAME,…", True)

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**i for i, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}i{b}": 1024**i for i, prefix in enumerate("kmgt", start=1) for b in ("", "b")}


def whole_or_parts(
    names: tuple[str, ...], parts: tuple[str, ...], of_parts: tuple[str, ...]
) -> Kind:
    """One of a few names, or ``PART=NAME`` for some parts, separated by commas; in any case."""

    def is_good(text: str) -> bool:
        given = [item.partition("=") for item in text.split(",")]
        of = [part for part, _, _ in given]
        return text in names or (
            len({*of}) == len(of)
            and all(part in parts and name in of_parts for part, _, name in given)
        )

    accepts = f"{', '.join(names)}; or PART=NAME,… of {', '.join(parts)}, {' or '.join(of_parts)}"
    return Kind(_checked(str.lower, is_good), accepts, "NAME or PART=NAME,…")


def parse_size(text: str) -> int:
    """Bytes from text such as ``4GiB``, ``512MB`` or ``1048576``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ValueError(text)
    return (
        int(float(match[1]) * _UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _UNITS[match[2]]
    )


def _parse_switch(text: str) -> bool:
    names = {"true": True, "1": True, "yes": True, "on": True}
    names |= {"false": False, "0": False, "no": False, "off": False}
    if text.lower() not in names:
        raise ValueError(text)
    return names[text.lower()]


def _parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


TEXT = Kind(_parse_text, "text that is not empty", "TEXT")
TEXTS = Kind(_parse_text, "one or more texts, separated by commas", "TEXT,…", is_list=True)


def _parse_web_address(text: str) -> str:
    address = urlsplit(text)
    is_plain = text.isascii() and text.isprintable() and not {*text} & {*" ;,'\"<>"}
    if address.scheme not in ("http", "https") or not address.hostname or not is_plain:
        raise ValueError(text)
    return text


WEB_ADDRESSES = Kind(
    _parse_web_address, "one or more of http://… or https://…, commas between", "URL,…", True
)


def _parse_key(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(text)
    return text


KEYS = Kind(
    _parse_key, "one or more keys, separated by commas", "TEXT,…", is_list=True, is_secret=True
)


def _parse_named_path(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name.strip() or not path.strip():
        raise ValueError(text)
    return name.strip(), path.strip()


# What may be changed of a config.json: what makes a model that scores texts of one that writes.
OVERRIDES = ("architectures", "classifier_from_token", "is_original_qwen3_reranker", "method")


def _parse_overrides(text: str) -> dict[str, object]:
    value = json.loads(text)
    if not isinstance(value, dict) or not set(value) <= set(OVERRIDES):
        raise ValueError(text)
    return value


HF_OVERRIDES = Kind(_parse_overrides, f"a JSON object with some of {', '.join(OVERRIDES)}", "JSON")
NAMED_PATHS = Kind(
    _parse_named_path, "NAME=PATH, or several separated by commas", "NAME=PATH,…", is_list=True
)
COUNTS = Kind(
    _checked(int, lambda value: value >= 1),
    "whole numbers from 1, separated by commas",
    "N,…",
    is_list=True,
)
SECONDS = Kind(
    _checked(float, lambda value: 0 <= value < float("inf")), "seconds from 0", "SECONDS"
)
SOME_SECONDS = Kind(
    _checked(float, lambda value: 0 < value < float("inf")), "seconds above 0", "SECONDS"
)
SPAN = re.compile(r"([01]?\d|2[0-3])(:[0-5]\d)?-([01]?\d|2[0-4])(:[0-5]\d)?")


def _parse_hours(text: str) -> str:
    if not SPAN.fullmatch(text.strip()):
        raise ValueError(text)
    return text.strip()


HOURS = Kind(
    _parse_hours, "hours of the day such as 22-6 or 12:30-14, commas between", "H-H,…", True
)
SHARE = Kind(_checked(float, lambda value: 0 <= value <= 1), "a number from 0 to 1", "SHARE")
DAYS = Kind(SECONDS.parse, "days from 0", "DAYS")


def _parse_day(text: str) -> str:
    return datetime.date.fromisoformat(text).isoformat()


DAY = Kind(_parse_day, "a day as YYYY-MM-DD", "DAY")
MILLISECONDS = Kind(SECONDS.parse, "milliseconds from 0", "MS")
TEMPERATURE = Kind(_checked(float, lambda value: 0 <= value <= 2), "a number from 0 to 2", "NUMBER")
ABOVE_0 = Kind(_checked(float, lambda value: 0 < value < float("inf")), "a number above 0", "N")
BITS = Kind(_checked(float, lambda value: 1 <= value <= 16), "a number from 1 to 16", "N")
SIZE = Kind(
    _checked(parse_size, lambda value: value > 0),
    "bytes above 0, alone or with B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024)",
    "SIZE",
)
ON_OFF = Kind(_parse_switch, "on | off", "")
SWITCH = Kind(_parse_switch, "true | false", "", is_switch=True)


_T = TypeVar("_T")


def knob(default: _T, kind: Kind, text: str, *short: str) -> _T:
    """A dataclass field that is a setting: ``text`` is its line in ``--help``, ``short`` as -p."""
    return field(default=default, metadata={"kind": kind, "help": text, "short": short})
