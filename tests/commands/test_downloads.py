"""``lanewise list`` and ``rm``: what was downloaded, and only that."""

import json

import pytest

from lanewise import cli
from lanewise.loading.checkpoints import small_model


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """A hub's cache with one model, and the small chat model in ours."""
    from huggingface_hub import constants

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--name"
    for name in ("blobs", "refs", "snapshots/1234"):
        (repository / name).mkdir(parents=True)
    (repository / "blobs" / "abc").write_bytes(b"x" * 3000)
    (repository / "refs" / "main").write_text("1234")
    (repository / "snapshots" / "1234" / "a.gguf").symlink_to("../../blobs/abc")
    kept = small_model.kept_file()
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"y" * 500)
    return repository


def listed(capsys):
    assert cli.main(["list", "--json"]) == 0
    return {one["name"]: one["n_bytes"] for one in json.loads(capsys.readouterr().out)["models"]}


def test_both_caches_are_listed(caches, capsys):
    assert listed(capsys) == {"smollm2": 500, "org/name": 3000}
    assert cli.main(["list"]) == 0
    assert "org/name" in capsys.readouterr().out


def test_a_model_is_deleted_and_nothing_else(caches, capsys):
    assert cli.main(["rm", "org/name"]) == 0
    assert "deleted" in capsys.readouterr().out
    assert not caches.exists()
    assert listed(capsys) == {"smollm2": 500}
    assert cli.main(["rm", "smollm2"]) == 0
    assert capsys.readouterr().out
    assert cli.main(["list"]) == 0
    assert "lanewise pull MODEL" in capsys.readouterr().out


def test_what_is_named_for_the_server_is_not_deleted(caches, monkeypatch):
    monkeypatch.setenv("LANEWISE_MODEL", "org/name")
    assert cli.main(["rm"]) == 2
    assert caches.exists()


def test_what_was_not_downloaded_stays(caches, capsys, tmp_path):
    mine = tmp_path / "mine.gguf"
    mine.touch()
    assert cli.main(["rm", str(mine)]) == 2
    assert mine.exists()
    assert cli.main(["rm", "org/nam"]) == 2
    assert "did you mean org/name?" in capsys.readouterr().err
    assert cli.main(["rm"]) == 2
