"""A store's files as one file to be taken elsewhere: a tar archive, equal for equal files.

What is taken from an archive is checked as far as it can be without the model: names, sizes and
headers. Servers check the rest when they read a file.
"""

import io
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lanewise.store.block_files import (
    ABOUT,
    HALF,
    HEADER,
    SUFFIX,
    StoreError,
    files_of,
    header_fits,
)

BLOCK_NAME = re.compile(rf"[0-9a-f]{{32}}/([0-9a-f]{{2}})/\1[0-9a-f]{{38}}\{SUFFIX}")
ABOUT_NAME = re.compile(rf"[0-9a-f]{{32}}/{re.escape(ABOUT)}")
MOST_ABOUT = 1 << 16  # bytes


def export(root: Path, archive: Path) -> int:
    """Write all whole files of a store to an archive; returns how many blocks. StoreError."""
    half = archive.with_name(f"{archive.name}.{os.getpid()}{HALF}")
    count = 0
    try:
        with tarfile.open(half, "w") as tar:
            for path in _exported(root):
                name, data = str(path.relative_to(root)), path.read_bytes()
                is_block = BLOCK_NAME.fullmatch(name) is not None
                if is_block and not header_fits(data[: HEADER.size], len(data)):
                    continue
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o600
                tar.addfile(entry, io.BytesIO(data))
                count += is_block
        half.replace(archive)
    except OSError as error:
        with suppress(OSError):
            half.unlink()
        raise StoreError(f"export_file: {archive}: {error.strerror}") from error
    return count


def _exported(root: Path) -> Iterator[Path]:
    """The files of a store by name, those that say what a folder is among them."""
    blocks = [file.path for file in files_of(root)]
    yield from sorted([*root.glob(f"*/{ABOUT}"), *blocks])


def take_in(root: Path, archive: Path) -> tuple[int, int]:
    """Put the files of an archive into a store, which keeps those that it has.

    Returns how many blocks are new, and how many entries were left out because they are no blocks.
    StoreError if the archive cannot be read or the directory not be written.
    """
    new, refused = 0, 0
    try:
        with tarfile.open(archive, "r:") as tar:
            for entry in tar:
                if entry.isdir():
                    continue
                took = _take(root, tar, entry)
                if took is None:
                    refused += 1
                elif took:
                    new += BLOCK_NAME.fullmatch(entry.name) is not None
    except tarfile.TarError as error:
        raise StoreError(f"import_file: {archive}: {error}; accepted: an export_file") from None
    except OSError as error:
        raise StoreError(f"import_file: {error.filename or archive}: {error.strerror}") from None
    return new, refused


def _take(root: Path, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bool | None:
    """Whether an entry is new in the store; None if it is nothing for a store."""
    is_block = BLOCK_NAME.fullmatch(entry.name) is not None
    is_about = ABOUT_NAME.fullmatch(entry.name) is not None and entry.size <= MOST_ABOUT
    source = tar.extractfile(entry) if entry.isreg() and (is_block or is_about) else None
    if source is None:
        return None
    head = source.read(HEADER.size) if is_block else b""
    if is_block and not header_fits(head, entry.size):
        return None
    path = root / entry.name
    if path.exists():
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    half = path.with_name(f"{path.stem}.{os.getpid()}{HALF}")
    try:
        with open(half, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(head)
            while part := source.read(1 << 20):
                file.write(part)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return True
