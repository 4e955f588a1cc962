"""Names of models, and downloads from a hub on the loopback interface."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, serve
from model_files import FAMILIES, write_directory, write_gguf

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints import hub as hub_module
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint

START = "bytes=0-65535"  # where a GGUF file says what it is
SERVICE = Path(__file__).parents[2] / "service"
SCRIPT = """
import sys
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.hub import resolve_model
try:
    print(resolve_model(sys.argv[1]))
except ModelFileError as error:
    sys.exit(f"ModelFileError: {error}")
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub()) as hub:
        yield hub


def environment(hub: Hub, home: Path, **env: str) -> dict[str, str]:
    others = {
        key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))
    }
    return others | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "PYTHONPATH": str(SERVICE),
        "no_proxy": "127.0.0.1",
        **env,
    }


def start(argument: str, hub: Hub, home: Path, **env: str) -> subprocess.Popen[str]:
    """Resolve in a process of its own: the hub library reads its environment once."""
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, argument],
        env=environment(hub, home, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def resolve(argument: str, hub: Hub, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    with start(argument, hub, home, **env) as process:
        out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def directory_files(tmp_path: Path) -> dict[str, bytes]:
    folder = write_directory(tmp_path / "source", FAMILIES["llama"], shards=2)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {
        "tokenizer.json": b"{}",
        "chat_template.jinja": b"{{ messages }}",
        "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
        "README.md": b"unwanted",
        "pytorch_model.bin": b"unwanted",
        "consolidated.safetensors": b"unwanted",
        "original/model.safetensors": b"unwanted",
        "model.gguf": b"unwanted",
    }
    return files


def test_repository_is_fetched_without_what_serving_does_not_need(hub: Hub, tmp_path: Path) -> None:
    hub.files = directory_files(tmp_path)
    done = resolve("org/name", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    fetched = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert fetched == {name for name, content in hub.files.items() if content != b"unwanted"}
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.name == "org/name"
    assert not done.stderr.strip() or "unauthenticated" in done.stderr  # no bar off a terminal

    before = len(hub.downloads())
    again = resolve("org/name", hub, tmp_path / "home")
    assert again.stdout == done.stdout
    assert len(hub.downloads()) == before


def test_all_that_is_read_of_a_directory_is_fetched(hub: Hub, tmp_path: Path) -> None:
    """Without modules.json an embedder pools otherwise than its makers say."""
    wanted = {
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
        *("vocab.json", "merges.txt", "added_tokens.json"),
        *("quantize_config.json", "quant_config.json"),
        *("preprocessor_config.json", "processor_config.json"),
    }
    copies = {"onnx/model.onnx", "openvino/model.safetensors", "4bit/model.safetensors"}
    copies |= {"2_Dense/pytorch_model.bin", "1_Pooling/README.md"}
    hub.files = directory_files(tmp_path) | dict.fromkeys(wanted, b"{}")
    hub.files |= dict.fromkeys(copies, b"unwanted")
    done = resolve("org/name", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    fetched = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert fetched == {name for name, content in hub.files.items() if content != b"unwanted"}


def test_the_smallest_tower_beside_a_gguf_file_is_fetched_with_it(hub: Hub, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"]).read_bytes()
    towers = {"q/mmproj-F16.gguf": bytes(40 << 20), "q/mmproj-Q8_0.gguf": bytes(20 << 20)}
    others = {"mmproj-small.gguf": b"unwanted", "q/b.gguf": b"unwanted"}
    hub.files = {"q/a.gguf": content, **towers, **others}
    done = resolve("org/name:q/a.gguf", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.read_bytes() == content
    assert {one.name for one in path.parent.iterdir()} == {"a.gguf", "mmproj-Q8_0.gguf"}
    assert {name for name, _ in hub.downloads()} == {"a.gguf", "mmproj-Q8_0.gguf"}


def test_one_gguf_file_is_fetched_by_name(hub: Hub, tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"]).read_bytes()
    hub.files = {"a.gguf": content, "b.gguf": b"unwanted"}
    done = resolve("org/name:a.gguf", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    with open_checkpoint(Path(done.stdout.strip())) as checkpoint:
        assert checkpoint.name == "a"
    assert {name for name, _ in hub.downloads()} == {"a.gguf"}


def test_broken_download_goes_on_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    content = bytes(range(256)) * (24 << 12)  # 24 MiB; the library writes 10 MB at a time
    hub.files = {"big.gguf": content}
    hub.cut = {"big.gguf": 15 << 20}
    done = resolve("org/name:big.gguf", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content
    start, first, second = hub.downloads()
    assert start[1] == START
    assert first[1] is None
    assert second[1] is not None
    assert int(second[1].removeprefix("bytes=").removesuffix("-")) >= 10_000_000


def test_killed_download_goes_on_in_the_next_run(hub: Hub, tmp_path: Path) -> None:
    content = bytes(range(256)) * (32 << 12)
    hub.files = {"big.gguf": content}
    hub.stall = {"big.gguf": 22 << 20}
    with start("org/name:big.gguf", hub, tmp_path / "home") as first:
        assert hub.stalled.wait(60)
        part = wait_for_part(tmp_path / "home", 20_000_000)
        first.kill()
    hub.released.set()
    kept = part.stat().st_size
    done = resolve("org/name:big.gguf", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == content
    assert hub.downloads() == [
        ("big.gguf", START),
        ("big.gguf", None),
        ("big.gguf", f"bytes={kept}-"),
    ]
    assert not part.exists()


def wait_for_part(home: Path, n_bytes: int) -> Path:
    for _ in range(600):
        for part in home.rglob("*.part"):
            if part.stat().st_size >= n_bytes:
                return part
        time.sleep(0.1)
    raise AssertionError("nothing was written")


def test_offline_uses_the_cache_alone(hub: Hub, tmp_path: Path) -> None:
    hub.files = directory_files(tmp_path)
    first = resolve("org/name", hub, tmp_path / "home")
    asked = len(hub.requests)
    done = resolve("org/name", hub, tmp_path / "home", HF_HUB_OFFLINE="1")
    assert done.stdout == first.stdout
    assert COMMIT in done.stdout
    missing = resolve("org/other", hub, tmp_path / "home", HF_HUB_OFFLINE="1")
    assert missing.returncode == 1
    assert "org/other: HF_HUB_OFFLINE is set and the files are not" in missing.stderr
    assert len(hub.requests) == asked


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (404, "RepoNotFound", "org/name: no such repository at http://127.0.0.1"),
        (401, "", "HF_TOKEN is not set or not allowed"),
        (403, "GatedRepo", "access must first be granted"),
    ],
)
@pytest.mark.parametrize("argument", ["org/name", "org/name:m.gguf"])
def test_refusals_are_explained(
    argument: str, status: int, code: str, message: str, hub: Hub, tmp_path: Path
) -> None:
    hub.status, hub.error_code = status, code
    done = resolve(argument, hub, tmp_path / "home")
    assert done.returncode == 1
    assert "ModelFileError: org/name: " in done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_file_and_missing_config_are_explained(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"a.gguf": b"GGUF"}
    done = resolve("org/name:b.gguf", hub, tmp_path / "home")
    assert "org/name: the repository has no file 'b.gguf'" in done.stderr
    done = resolve("org/name", hub, tmp_path / "home")
    assert "for a repository of GGUF files give org/name:file.gguf" in done.stderr


def test_hub_that_fails_or_is_not_there_is_explained(hub: Hub, tmp_path: Path) -> None:
    hub.status = 500
    with subprocess.Popen(
        [sys.executable, "-m", "lanewise", "serve", "org/name", "--port", "0"],
        env=environment(Hub(endpoint="http://127.0.0.1:9"), tmp_path / "other"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        done = resolve("org/name", hub, tmp_path / "home")
        _, error = serving.communicate(timeout=120)
    assert f"{hub.endpoint} cannot be reached" in done.stderr
    assert "500" in done.stderr
    assert serving.returncode == 1
    assert "Retrying" not in error  # two tries of ours, not six of the library
    assert error.count("cannot be reached") == 1
    assert "http://127.0.0.1:9 cannot be reached" in error


def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)) == file
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model("~/m.gguf") == file


def test_a_hub_that_is_gone_costs_nothing_where_the_cache_has_it(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"a.gguf": b"GGUF"}
    here = resolve("org/name:a.gguf", hub, tmp_path / "home").stdout
    gone = Hub(endpoint="http://127.0.0.1:9")
    again = resolve("org/name:a.gguf", gone, tmp_path / "home")
    assert (again.stdout, again.stderr) == (here, "")


def test_a_download_without_a_terminal_is_told_now_and_then(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(hub_module, "TOLD_EVERY_S", 0.01)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc.part").write_bytes(bytes(3 << 20))
    with hub_module.told_sizes("org/name", tmp_path):
        while "downloading org/name: 3.0 MiB" not in caplog.text:
            time.sleep(0.005)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("", "the model name is empty"),
        ("no-such-thing", "no such file or directory; accepted are a GGUF file"),
        ("/no/such/thing", "no such file or directory"),
        ("models/a.gguf", "no such file or directory"),
        ("a/b/c", "no such file or directory"),
        ("../name", "no such file or directory"),
        ("org/name:model.bin", "'model.bin' is not a GGUF file"),
        ("nul\0byte", ""),
    ],
)
def test_other_names_are_explained(argument: str, message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        resolve_model(argument)
    assert message in str(caught.value)


def test_a_name_that_is_nearly_right_is_told_what_lies_beside(tmp_path: Path) -> None:
    (tmp_path / "SmolLM2-Q4_K_M.gguf").touch()
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelFileError) as caught:
        resolve_model(str(tmp_path / "SmolLM2-Q4_KM.gguf"))
    assert str(caught.value).endswith(f"; did you mean {tmp_path}/SmolLM2-Q4_K_M.gguf?")


def test_no_argument_is_the_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lanewise.loading.checkpoints.hub.resources.files", lambda package: tmp_path
    )
    with pytest.raises(ModelFileError, match="no bundled model"):
        resolve_model(None)
    (tmp_path / "demo").mkdir()
    file = write_gguf(tmp_path / "demo" / "small.gguf", FAMILIES["llama"])
    assert resolve_model(None) == file
