"""The requests of a batch: a file with a JSON object in each line."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

MAX_LINES = 50_000
MAX_ID = 512  # characters of a custom_id
MAX_TOLD = 20  # faults of a file that are told
SHOWN = 60
# Prompts are compared by digests of pieces of their text, for so many pieces.
PIECE_CHARACTERS, MAX_PIECES, DIGEST_BYTES = 256, 64, 4


# What prompts are made of, in the order in which it stands in most of them.
OF_PROMPTS = (
    *("model", "cache_salt", "tools", "system", "instructions", "messages", "prompt", "input"),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a line, numbered from 1; None: with the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BadLinesError(Exception):
    """A file is no list of requests."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults[0].message)
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Line:
    """Where a request stands in its file, and what it is called."""

    offset: int
    size: int
    custom_id: str
    url: str
    order: bytes  # equal beginnings for equal beginnings of prompts


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file of requests may have."""

    urls: Collection[str]
    line_bytes: int
    lines: int = MAX_LINES
    parse: Callable[[bytes], Any] = json.loads  # what a line says; ValueError if it is not JSON


def read_lines(path: Path, limits: Limits) -> list[Line]:
    """The requests of a file in the order in which they are best asked, or BadLinesError.

    Requests whose prompts begin alike follow each other, else they stay as they are: what they have
    in common is computed once. OSError if the file cannot be read.
    """
    lines: list[Line] = []
    faults: list[Fault] = []
    known: set[str] = set()
    with path.open("rb") as file:
        offset = 0
        for number in range(1, 1 << 62):
            text = file.readline(limits.line_bytes + 2)
            if not text or len(faults) >= MAX_TOLD:
                break
            if text.strip():
                found = _line_of(text, offset, number, limits, known)
                if isinstance(found, Fault):
                    faults.append(found)
                else:
                    lines.append(found)
            if len(lines) > limits.lines:
                message = f"more than {limits.lines} requests, which is the most of a batch"
                faults = [Fault("too_many_requests", message)]
                break
            if not text.endswith(b"\n") and len(text) > limits.line_bytes:
                break  # what follows is no line
            offset += len(text)
            time.sleep(0)  # threads that compute go first
    if not lines and not faults:
        faults = [Fault("empty_file", "the file has no requests")]
    if faults:
        raise BadLinesError(faults)
    lines.sort(key=lambda line: line.order)
    return lines


def _line_of(
    text: bytes, offset: int, number: int, limits: Limits, known: set[str]
) -> Line | Fault:
    if len(text.rstrip(b"\r\n")) > limits.line_bytes:
        message = (
            f"the line has more than {limits.line_bytes} bytes, which is the most of a request"
        )
        return Fault("line_too_long", message, number)
    try:
        said = limits.parse(text)
    except (ValueError, RecursionError) as error:
        return Fault("invalid_json_line", f"the line is not JSON: {error}", number)
    if not isinstance(said, dict):
        return Fault("invalid_json_line", "the line is not a JSON object", number)
    custom_id, url, body = said.get("custom_id"), said.get("url"), said.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID:
        message = f"custom_id: {_shown(custom_id)}; accepted: text of 1 to {MAX_ID} characters"
        return Fault("invalid_custom_id", message, number, "custom_id")
    if custom_id in known:
        message = f"custom_id: {_shown(custom_id)} stands in an earlier line too"
        return Fault("duplicate_custom_id", message, number, "custom_id")
    if said.get("method", "POST") != "POST":
        message = f"method: {_shown(said['method'])}; accepted: POST"
        return Fault("invalid_method", message, number, "method")
    if not isinstance(url, str) or url not in limits.urls:
        accepted = ", ".join(limits.urls)
        return Fault("invalid_url", f"url: {_shown(url)}; accepted: {accepted}", number, "url")
    if not isinstance(body, dict):
        message = f"body: {_shown(body)}; accepted: an object, the body of a request"
        return Fault("invalid_body", message, number, "body")
    known.add(custom_id)
    return Line(offset, len(text), custom_id, url, _order(body))


def _order(body: Mapping[str, Any]) -> bytes:
    """Digests of the pieces of what a prompt is made of, from its beginning on."""
    written = json.JSONEncoder().iterencode([body.get(name) for name in OF_PROMPTS])
    text = ""
    for part in written:
        text += part
        if len(text) >= PIECE_CHARACTERS * MAX_PIECES:
            break
    whole = min(len(text) // PIECE_CHARACTERS, MAX_PIECES)
    pieces = (text[i * PIECE_CHARACTERS : (i + 1) * PIECE_CHARACTERS] for i in range(whole))
    return b"".join(blake2b(one.encode(), digest_size=DIGEST_BYTES).digest() for one in pieces)


def text_of(path: Path, line: Line) -> bytes:
    """A line as it stands in its file."""
    with path.open("rb") as file:
        file.seek(line.offset)
        return file.read(line.size)


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if value is not None else "it is missing"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
