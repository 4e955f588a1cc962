"""A directory of KV cache blocks, one file each, named by what they were computed from.

A file has a header and the block's bytes. The header has a checksum of all that the block depends
on: the fingerprint of the model, the block's key and its bytes. A file that is truncated, changed,
foreign or of another version is a miss. Files are written under another name and renamed, so a
process that is killed leaves no half of a block.

With a secret, names and checksums are keyed: without it a block that is used cannot be made, nor be
told from its name which text it belongs to. A seal (``sealing.py``) encrypts the bytes behind the
header. A store may hold both forms; a server uses one, and the other is a miss.
"""

import io
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
from typing import BinaryIO

from lanewise.store.sealing import Seal

VERSION = 1
HEADER = struct.Struct("<8sII32s")  # magic, version, bytes behind it, checksum of the block
MAGIC = b"lanewise"
SUFFIX = ".kv"
HALF = ".half"  # of a file that is being written, or whose writer was killed
HALF_S = 600.0  # after so many seconds it was
ABOUT = "about.json"
UNSURE_S = 2.0  # a folder that changed so shortly before it was listed may have changed again
WEIGH_SHARE = 0.05  # of the most bytes: after so many were written all files are added up again
LEFT_AFTER_TRIM = 0.9  # so that not every block that is written makes room for itself


class StoreError(Exception):
    """The directory cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store."""

    path: Path
    n_bytes: int
    used: float  # when it was last written or read, seconds since 1970


@dataclass(frozen=True, slots=True)
class Listed:
    """What a folder had in it."""

    changed_s: float  # when it was changed, as its file system says
    at_s: float  # when it was listed, by ``time.time()``
    names: frozenset[str]


NEVER_LISTED = Listed(-1.0, -1.0, frozenset())


def files_of(root: Path) -> Iterator[StoredFile]:
    """The blocks of all models in a store."""
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(SUFFIX):
                path = Path(folder, name)
                with suppress(OSError):  # another process has removed it
                    info = path.stat()
                    yield StoredFile(path, info.st_size, info.st_mtime)


def path_of(name: str) -> str:
    """Where the file of this name is in its model's folder."""
    return f"{name[:2]}/{name}{SUFFIX}"


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
    n_bytes, removed = 0, 0
    for file in sorted(files_of(root), key=lambda file: file.used, reverse=True):
        if n_bytes + file.n_bytes <= most_bytes:
            n_bytes += file.n_bytes
            continue
        with suppress(OSError):
            file.path.unlink()
            removed += 1
    return n_bytes, removed


class BlockFiles:
    """The blocks of one model in a store; any thread may call it."""

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        *,
        most_bytes: int,
        secret: bytes = b"",
        seal: Seal | None = None,
        about: dict[str, str] | None = None,
    ) -> None:
        """Open the store in ``root``, made where it is missing; StoreError if it cannot be."""
        self.root = root
        self._secret = blake2b(secret, digest_size=32).digest() if secret else b""
        self._seal = seal
        self._fingerprint = fingerprint
        self.folder = root / self._digest(b"model", fingerprint).hex()[:32]
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._listed: dict[str, Listed] = {}  # by the folder's name
        # Of all models when they were last added up, and what was written since.
        self.held_bytes = 0
        self._unweighed = 0  # bytes written since
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / ABOUT).write_text(json.dumps(about or {}, indent=1) + "\n")
        except OSError as error:
            raise StoreError(f"kv_store is {root}: {error.strerror}") from error
        sweep(root)
        self.look()
        self.weigh()

    def look(self) -> None:
        """See what other processes have added and removed of this model.

        Only folders that have changed are listed: this is done every few seconds, and all that
        Python does here keeps the threads that plan steps waiting.
        """
        listed: dict[str, Listed] = {}
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                known = self._listed.get(entry.name, NEVER_LISTED)
                with suppress(OSError):  # it is none
                    changed_s = entry.stat().st_mtime
                    if changed_s != known.changed_s or abs(known.at_s - changed_s) < UNSURE_S:
                        names = os.listdir(entry.path)
                        stems = {name[: -len(SUFFIX)] for name in names if name.endswith(SUFFIX)}
                        known = Listed(changed_s, time.time(), frozenset(stems))
                    listed[entry.name] = known
        with self._lock:
            self._listed = listed
            self._names = set().union(*(one.names for one in listed.values()))

    def weigh(self) -> None:
        """Add up the bytes of all models again."""
        n_bytes = sum(file.n_bytes for file in files_of(self.root))
        with self._lock:
            self.held_bytes, self._unweighed = n_bytes, 0

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
                is_right = self._fill(file, key, into) and header == self._header(key, into)
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
        file = io.BytesIO(data)
        header = file.read(HEADER.size)
        return self._fill(file, key, into) and header == self._header(key, into)

    def raw(self, name: str) -> bytes | None:
        """All that a file has in it; None if there is no such file."""
        try:
            return self._path(name).read_bytes()
        except OSError:
            return None

    def n_bytes(self, name: str) -> int:
        """The size of a file; 0 if there is none."""
        try:
            return self._path(name).stat().st_size
        except OSError:
            return 0

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
        file_bytes = self._file_bytes(data)
        if file_bytes > self._most_bytes:
            return
        sealed = data if self._seal is None else self._seal.close(self._about(key), data)
        path = self._path(self.name_of(key))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        half = path.with_name(f"{path.stem}.{os.getpid()}.{threading.get_native_id()}{HALF}")
        try:
            with open(half, "wb", opener=_private) as file:
                file.write(self._header(key, data))
                file.write(sealed)
            half.replace(path)
        except OSError:
            with suppress(OSError):
                half.unlink()
            raise
        with self._lock:
            self._names.add(path.stem)
            self.held_bytes += file_bytes
            self._unweighed += file_bytes
            is_weighed = self._unweighed < WEIGH_SHARE * self._most_bytes
        if not is_weighed:  # other processes write too
            self.weigh()
        if self.held_bytes > self._most_bytes:
            self.held_bytes, _ = trim(self.root, int(LEFT_AFTER_TRIM * self._most_bytes))
            self.look()

    def _path(self, name: str) -> Path:
        return self.folder / path_of(name)

    def _file_bytes(self, block: bytearray) -> int:
        return HEADER.size + self._body_bytes(block)

    def _body_bytes(self, block: bytearray) -> int:
        return len(block) + (0 if self._seal is None else self._seal.extra_bytes)

    def _fill(self, file: BinaryIO, key: bytes, into: bytearray) -> bool:
        """Read the block behind a header; false if its length is another, or it is foreign."""
        if self._seal is None:
            return file.readinto(into) == len(into) and not file.read(1)  # type: ignore[attr-defined]
        sealed = file.read(self._body_bytes(into) + 1)
        return len(sealed) == self._body_bytes(into) and self._seal.open(
            self._about(key), sealed, into
        )

    def _about(self, key: bytes) -> bytes:
        """What a block belongs to."""
        return VERSION.to_bytes(4, "little") + self._fingerprint + key

    def _header(self, key: bytes, data: bytearray) -> bytes:
        digest = blake2b(digest_size=32, key=self._secret, person=b"lanewise kv")
        digest.update(self._about(key))
        digest.update(data)
        return HEADER.pack(MAGIC, VERSION, self._body_bytes(data), digest.digest())

    def _digest(self, kind: bytes, what: bytes) -> bytes:
        return blake2b(what, digest_size=32, key=self._secret, person=kind).digest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
