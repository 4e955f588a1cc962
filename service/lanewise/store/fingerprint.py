"""What blocks of a KV cache depend on beside their tokens: weights, program, numbers."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

KNOWN = "digests.json"


def content_digest(files: Iterable[Path], cache: Path) -> str:
    """SHA-256 of files' contents, in the order of their names; of directories all that is in them.

    Reading a large model takes its time, so digests are remembered by path, size and time of
    change, in the directory ``cache`` if it can be written.
    """
    known_path = cache / KNOWN
    known = _read(known_path)
    whole = hashlib.sha256()
    seen = {}
    for path in sorted(plain_files(files), key=lambda one: one.name):
        info = path.stat()
        place = f"{path.resolve()} {info.st_size} {info.st_mtime_ns} {info.st_ino}"
        digest = known.get(place)
        if not isinstance(digest, str):
            digest = sha256_of(path)
        seen[place] = digest
        whole.update(digest.encode())
    if not seen.keys() <= known.keys():
        with suppress(OSError):
            _write(known_path, known | seen)
    return whole.hexdigest()


def sha256_of(path: Path) -> str:
    """The digest of a file's contents, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files, and those in directories."""
    for path in paths:
        yield from filter(Path.is_file, path.iterdir()) if path.is_dir() else (path,)


def _read(path: Path) -> dict[str, object]:
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(path: Path, known: dict[str, object]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(known, indent=1) + "\n")
    half.replace(path)
