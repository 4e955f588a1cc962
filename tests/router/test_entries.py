"""The file of --models."""

import json

import gguf
import pytest

from lanewise.router.entries import folder_catalogue, read_catalogue
from lanewise.router.serve import catalogue_of
from lanewise.settings import Settings, SettingsError

CHAT = {"name": "chat", "model": "a.gguf"}


def read(tmp_path, content, **settings):
    file = tmp_path / "models.yaml"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_catalogue(str(file), Settings(**settings))


def test_a_model_has_the_shared_settings_and_its_own(tmp_path):
    text = """
memory: 2GiB
default: small
models:
  - name: chat
    model: org/chat
    aliases: [gpt-4o]
    pinned: true
    settings: {max_seqs: 4, lora: [sql=/adapters/sql]}
  - {name: small, model: b.gguf, idle_s: 0, memory: 512MiB}
"""
    found = read(tmp_path, text, max_seqs=9, itl_target_ms=50.0, port=1234, api_key=("secret",))
    chat, small = found.entries
    assert chat.names == ("chat", "gpt-4o", "sql")
    assert dict(chat.settings) == {
        "max_seqs": 4,
        "itl_target_ms": 50.0,
        "lora": ["sql=/adapters/sql"],
        "model": "org/chat",
    }
    assert (chat.pinned, chat.memory, small.memory, small.idle_s) == (True, None, 512 << 20, 0)
    assert small.settings["max_seqs"] == 9
    assert (found.memory, found.default) == (2 << 30, "small")


def test_one_model_alone_is_the_default(tmp_path):
    assert read(tmp_path, {"models": [CHAT]}).default == "chat"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("- [", "line 1 is not YAML"),
        ({}, "models: None; accepted: a list of models"),
        ({"models": [CHAT], "more": 1}, "more: 'not known'; accepted: default, load_s"),
        ({"models": [{"name": "chat"}]}, r"models\[0\].model: None"),
        ({"models": [CHAT, CHAT]}, "'chat'; accepted: each name once"),
        ({"models": [CHAT], "default": "x"}, "default: 'x'; accepted: one of chat"),
        ({"models": [CHAT], "memory": "much"}, "memory: 'much'; accepted: a size"),
        ({"models": [{**CHAT, "pinned": "yes"}]}, "pinned: 'yes'; accepted: true | false"),
        ({"models": [{**CHAT, "idle_s": -1}]}, "idle_s: -1; accepted: a number from 0"),
        ({"models": [{**CHAT, "aliases": "b"}]}, "aliases: 'b'; accepted: a list of names"),
        ({"models": [{**CHAT, "settings": {"port": 1}}]}, "settings.port: 'a setting of the"),
        ({"models": [{**CHAT, "settings": {"max_seq": 1}}]}, "did you mean 'max_seqs'"),
        ({"models": [{**CHAT, "settings": {"max_seqs": 0}}]}, "max_seqs: '0' cannot be used"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(tmp_path, content, says):
    with pytest.raises(SettingsError, match=says):
        read(tmp_path, content)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"none\.yaml: No such file"):
        read_catalogue(str(tmp_path / "none.yaml"), Settings())


def folder_of(tmp_path, *names):
    """Empty models of these names; one without an end is a directory."""
    for name in names:
        if name.endswith((".gguf", ".txt")):
            (tmp_path / name).touch()
        else:
            (tmp_path / name).mkdir()
            (tmp_path / name / "config.json").touch()
    return tmp_path


def test_a_folder_has_its_models_by_their_names(tmp_path):
    parts = [f"large-{number:05}-of-00002.gguf" for number in (1, 2)]
    folder = folder_of(tmp_path, "chat-Q4_0.gguf", "bge-small.v1", ".hidden", "a.txt", *parts)
    (folder / "no-model").mkdir()
    found = folder_catalogue(str(folder), Settings(max_seqs=9, models_dir=str(folder)))
    settings = {one.name: one.settings for one in found.entries}
    files = {"bge-small.v1": "bge-small.v1", "chat-Q4_0": "chat-Q4_0.gguf", "large": parts[0]}
    assert settings == {
        name: {"max_seqs": 9, "model": str(folder / file)} for name, file in files.items()
    }
    assert found.default is None


def test_one_model_alone_in_a_folder_is_the_default(tmp_path):
    found = folder_catalogue(str(folder_of(tmp_path, "chat.gguf")), Settings())
    assert found.default == "chat"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["a.gguf", "a"], "a and a.gguf are both called 'a'; accepted: each name once"),
        (["a.txt"], "no model is there; accepted: a folder of GGUF files"),
    ],
)
def test_a_folder_that_cannot_be_served_is_told_why(tmp_path, names, says):
    with pytest.raises(SettingsError, match=says):
        folder_catalogue(str(folder_of(tmp_path, *names)), Settings())


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"models_dir: .*none: No such file"):
        folder_catalogue(str(tmp_path / "none"), Settings())


def test_models_come_from_one_place(tmp_path):
    folder = str(folder_of(tmp_path, "a.gguf"))
    assert [one.name for one in catalogue_of(Settings(models_dir=folder)).entries] == ["a"]
    with pytest.raises(SettingsError, match=r"models_dir: .* beside model 'b.gguf'; accepted: one"):
        catalogue_of(Settings(models_dir=folder, model="b.gguf"))
    with pytest.raises(SettingsError, match=r"models: 'm.yaml' beside models_dir"):
        catalogue_of(Settings(models_dir=folder, models="m.yaml"))


def test_what_is_no_model_is_not_offered(tmp_path, caplog):
    folder = folder_of(tmp_path, "chat.gguf", "half.gguf")
    kinds = {"sees": ("clip", None), "sql": ("llama", "adapter"), "real": ("llama", "model")}
    for name, (architecture, kind) in kinds.items():
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", architecture)
        if kind is not None:
            writer.add_type(kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
    (folder / "half.gguf").write_bytes((folder / "sql.gguf").read_bytes()[:40])
    with caplog.at_level("INFO"):
        found = folder_catalogue(str(folder), Settings())
    assert [one.name for one in found.entries] == ["chat", "half", "real"]
    assert "sees.gguf is left out: its kind is mmproj" in caplog.text
    assert "sql.gguf is left out: its kind is adapter" in caplog.text
