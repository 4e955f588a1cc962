"""A directory of KV cache blocks, one file each, named by what they were computed from.

A file has a header and the block's bytes. The header has a checksum of all that the block depends
on: the fingerprint of the model, the block's key and its bytes. A file that is truncated, changed,
foreign or of another version is a miss. Files are written under another name and renamed, so a
process that is killed leaves no half of a block.

With a secret, names and checksums are keyed: without it a block that
is used cannot be made, nor be told from its name which text it belongs to.
"""

import json
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

VERSION = 1
HEADER = struct.Struct("<8sII32s")  # magic, version, bytes of the block, checksum
MAGIC = b"lanewise"
SUFFIX = ".kv"
HALF = ".half"  # of a file that is being written, or whose writer was killed
HALF_S = 600.0  # after so many seconds it was
ABOUT = "about.json"
LEFT_AFTER_TRIM = 0.9  # so that not every block that is written makes room for itself


class StoreError(Exception):
    """The directory cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store."""

    path: Path
    n_bytes: int
    used: float  # when it was last written or read, seconds since 1970


def files_of(root: Path) -> Iterator[StoredFile]:
    """The blocks of all models in a store."""
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(SUFFIX):
                path = Path(folder, name)
                with suppress(OSError):  # another process has removed it
                    info = path.stat()
                    yield StoredFile(path, info.st_size, info.st_mtime)


def sweep(root: Path) -> None:
    """Remove what writers that were killed have left."""
    for path in root.rglob(f"*{HALF}"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - HALF_S:
                path.unlink()


def is_whole(path: Path) -> bool:
    """Whether a file has a header of this version and as many bytes as that says.

    Its checksum can be checked only with the model and the secret.
    """
    try:
        with path.open("rb") as file:
            return header_fits(file.read(HEADER.size), path.stat().st_size)
    except OSError:
        return False


def header_fits(header: bytes, file_bytes: int) -> bool:
    """Whether a file of this size may begin like this."""
    try:
        magic, version, n_bytes, _ = HEADER.unpack(header)
    except struct.error:
        return False
    return (magic, version, n_bytes) == (MAGIC, VERSION, file_bytes - HEADER.size)


def trim(root: Path, most_bytes: int) -> tuple[int, int]:
    """Remove the blocks that were used longest ago until the rest fits.

    Returns the bytes that are left, and how many blocks went.
    """
    left, removed = _trimmed(root, most_bytes)
    return sum(file.n_bytes for file in left), removed


def _trimmed(root: Path, most_bytes: int) -> tuple[list[StoredFile], int]:
    """The files that are left, and how many went."""
    left: list[StoredFile] = []
    n_bytes, removed = 0, 0
    for file in sorted(files_of(root), key=lambda file: file.used, reverse=True):
        if n_bytes + file.n_bytes <= most_bytes:
            n_bytes += file.n_bytes
            left.append(file)
            continue
        with suppress(OSError):
            file.path.unlink()
            removed += 1
    return left, removed


class BlockFiles:
    """The blocks of one model in a store; any thread may call it."""

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        *,
        most_bytes: int,
        secret: bytes = b"",
        about: dict[str, str] | None = None,
    ) -> None:
        """Open the store in ``root``, made where it is missing; StoreError if it cannot be."""
        self.root = root
        self._secret = blake2b(secret, digest_size=32).digest() if secret else b""
        self._fingerprint = fingerprint
        self.folder = root / self._digest(b"model", fingerprint).hex()[:32]
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self.held_bytes = 0  # of all models, as of the last look, and what was written since
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / ABOUT).write_text(json.dumps(about or {}, indent=1) + "\n")
        except OSError as error:
            raise StoreError(f"kv_store is {root}: {error.strerror}") from error
        sweep(root)
        self.look()

    def look(self) -> None:
        """Read the directory again: other processes add and remove blocks."""
        self._note(list(files_of(self.root)))

    def _note(self, files: Sequence[StoredFile]) -> None:
        """These files are there, of all models."""
        names = {file.path.stem for file in files if self.folder in file.path.parents}
        with self._lock:
            self._names = names
            self.held_bytes = sum(file.n_bytes for file in files)

    def name_of(self, key: bytes) -> str:
        """The name of the file of the block with this key."""
        return self._digest(b"block", key).hex()[:40]

    def has(self, key: bytes) -> bool:
        """Whether the block is there, as far as known without a look at the disk."""
        return self.name_of(key) in self._names

    def read(self, key: bytes, into: bytearray) -> bool:
        """Read a block; false if it is not there, or not what it should be and then removed."""
        path = self._path(self.name_of(key))
        try:
            with path.open("rb") as file:
                header = file.read(HEADER.size)
                whole = file.readinto(into) == len(into) and not file.read(1)
            is_right = whole and header == self._header(key, into)
            if is_right:
                os.utime(path)
        except OSError:
            is_right = False
        if not is_right:
            with suppress(OSError):
                path.unlink()
            with self._lock:
                self._names.discard(path.stem)
        return is_right

    def unpack(self, key: bytes, data: bytes, into: bytearray) -> bool:
        """Read a block from what a file has in it; false if it is not what it should be."""
        if len(data) != HEADER.size + len(into):
            return False
        into[:] = memoryview(data)[HEADER.size :]
        return data[: HEADER.size] == self._header(key, into)

    def raw(self, name: str) -> bytes | None:
        """All that a file has in it; None if there is no such file."""
        try:
            return self._path(name).read_bytes()
        except OSError:
            return None

    def names(self) -> set[str]:
        """The names of all files of this model, as of the last look."""
        with self._lock:
            return set(self._names)

    def about(self) -> bytes:
        """What the folder of this model says of it; empty if it cannot be read."""
        try:
            return (self.folder / ABOUT).read_bytes()
        except OSError:
            return b""

    def is_near(self, key: bytes) -> bool:
        """Whether reading it asks nothing of a network; a directory counts as near."""
        return True

    def expect(self, keys: Sequence[bytes]) -> None:
        """These are going to be read, in this order."""

    def take_remote_counts(self) -> Mapping[str, int]:
        """What a bucket has done since the last call: there is none."""
        return {}

    def tell(self, call: Callable[[], None]) -> None:
        """Have ``call`` made whenever there is something to count of a bucket."""

    def close(self) -> None:
        """End: there is nothing to be ended."""

    def write(self, key: bytes, data: bytearray) -> None:
        """Write a block, and remove others if there are too many bytes; OSError if that fails."""
        file_bytes = HEADER.size + len(data)
        if file_bytes > self._most_bytes:
            return
        path = self._path(self.name_of(key))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = path.with_name(f"{path.stem}.{os.getpid()}.{threading.get_native_id()}{HALF}")
        try:
            with open(half, "wb", opener=_private) as file:
                file.write(self._header(key, data))
                file.write(data)
            half.replace(path)
        except OSError:
            with suppress(OSError):
                half.unlink()
            raise
        with self._lock:
            self._names.add(path.stem)
            self.held_bytes += file_bytes
            is_full = self.held_bytes > self._most_bytes
        if is_full:
            left, _ = _trimmed(self.root, int(LEFT_AFTER_TRIM * self._most_bytes))
            self._note(left)

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}{SUFFIX}"

    def _header(self, key: bytes, data: bytearray) -> bytes:
        digest = blake2b(digest_size=32, key=self._secret, person=b"lanewise kv")
        digest.update(VERSION.to_bytes(4, "little") + self._fingerprint + key)
        digest.update(data)
        return HEADER.pack(MAGIC, VERSION, len(data), digest.digest())

    def _digest(self, kind: bytes, what: bytes) -> bytes:
        return blake2b(what, digest_size=32, key=self._secret, person=kind).digest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
