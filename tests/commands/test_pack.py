"""``lanewise pack`` and the commands that read its directories, with the real library and files."""

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiny_models
import topics
from lanewise import cli
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.mapped_file import MappedFile
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session, placing_refusal, usable_levels
from lanewise.text.tokenizer import Tokenizer
from lanewise.topology import Placement

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]

TEXT = "It was a dark night, and the sea lay still. Nobody came. 'Who is there?' 1234 ünïcödé\n" * 3
CHAT = [{"role": "user", "content": "Hello <|end|> there"}]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """The bundled model (Q8_0, GGUF), packed for the level in use."""
    folder = tmp_path_factory.mktemp("packed") / "demo"
    assert cli.main(["pack", "-o", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("most", [100_000, 1_000], ids=["weights", "first block"])
def test_a_full_disk_is_told_with_the_file(tmp_path, most):
    """A limit on the size of files is the full disk that a test can have without privileges."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [sys.executable, "-m", "lanewise", "pack", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/out/model.safetensors: {os.strerror(errno.EFBIG)}" in done.stderr
    assert not list(tmp_path.iterdir())


def perplexity(capsys, text: Path, model: Path | str, *options: str) -> dict:
    capsys.readouterr()
    assert cli.main(["perplexity", str(model), "--file", str(text), "--json", *options]) == 0
    out, _ = capsys.readouterr()
    return json.loads(out)


def error_of(capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(list(arguments)) == 1
    return capsys.readouterr().err


BIASED = ("avx512vnni", "avx512vbmi", "amx")  # levels that hold Q8_0 with an offset


def other_layout() -> str:
    """A level whose Q8_0 layout is not that of the level in use."""
    used = os.environ.get("LANEWISE_ISA") or usable_levels()[-1]
    found = [isa for isa in usable_levels() if (isa in BIASED) != (used in BIASED)]
    if not found:
        topics.skip("machine", "this CPU has no two levels with different layouts")
    return found[-1]


@pytest.mark.parametrize("load", ["auto", "map", "copy"])
def test_packed_model_gives_the_same_logits(capsys, caplog, text, packed, load):
    before = perplexity(capsys, text, resolve_model(None))
    after = perplexity(capsys, text, packed, "--load", load)
    assert after["logits_sha256"] == before["logits_sha256"]
    assert (after["tokens"], after["weights"]) == (before["tokens"], "q8_0")
    assert not caplog.records


def mapped_bytes(path: Path) -> int:
    """Resident bytes of a file in this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    found, is_ours = 0, False
    for line in lines:
        if not line.split()[0].endswith(":"):
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


def load_and_close(path: Path, load: str, placement: Placement | None = None) -> Model:
    with open_checkpoint(path) as checkpoint:
        return Model.load(checkpoint, load=load, placement=placement)


def test_weights_that_are_to_lie_on_nodes_are_copied(monkeypatch, packed):
    """Pages of a file are where they were first read, even huge ones."""
    if refused := placing_refusal([0]):
        topics.skip("machine", f"this kernel or container places no memory: {refused}")
    monkeypatch.setattr(MappedFile, "is_on_huge_pages", lambda self: True)
    placed = Placement((), "", "interleave", (0,), (), "")
    with load_and_close(packed, "auto", placed) as model:
        assert mapped_bytes(packed / "model.safetensors") == 0
        weights = logits_of(model)
    with load_and_close(packed, "auto") as model:
        assert mapped_bytes(packed / "model.safetensors") > 0
        assert logits_of(model) == weights


@pytest.mark.parametrize(
    ("load", "huge", "is_mapped"),
    [("auto", True, True), ("auto", False, False), ("map", False, True), ("copy", True, False)],
)
def test_weights_are_in_memory_once(monkeypatch, packed, load, huge, is_mapped):
    monkeypatch.setattr(MappedFile, "is_on_huge_pages", lambda self: huge)
    path = packed / "model.safetensors"
    with load_and_close(packed, load) as model:  # mapped weights stay, others do not
        assert logits_of(model)
        assert (mapped_bytes(path) > 0.9 * path.stat().st_size) == is_mapped
        assert is_mapped or mapped_bytes(path) == 0
    assert mapped_bytes(path) == 0


@pytest.mark.parametrize("load", ["map", "copy"])
def test_packed_for_another_level_is_repacked_with_one_log_line(capsys, caplog, text, packed, load):
    before = perplexity(capsys, text, resolve_model(None))
    isa = other_layout()
    after = perplexity(capsys, text, packed, "--isa", isa, "--load", load)
    assert after["logits_sha256"] == before["logits_sha256"]
    assert after["isa"] == isa
    (record,) = caplog.records
    assert re.search(rf"{packed}: 57 of 57 .* repacked for {isa}", record.getMessage())


def logits(checkpoint) -> bytes:
    with Model.load(checkpoint, threads=2) as model:
        return logits_of(model)


def logits_of(model: Model) -> bytes:
    prompt = tiny_models.prompt(40)
    batch = Batch(prompt, [0, len(prompt)], [0], [[0, 1]], list(range(len(prompt))))
    with Session(model, threads=1, blocks=2, max_batch_tokens=40, max_batch_logits=40) as session:
        return session.step(batch).tobytes()


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
def test_every_family_and_kind_of_file_stays_the_same_model(tmp_path, family, kind):
    model = tiny_models.tiny_model(family)
    if kind == "hf":
        source = tiny_models.write_hf(model, tmp_path / "source")
    else:
        source = tiny_models.write_gguf(model, tmp_path / "source.gguf")
    folder = tmp_path / "packed"
    assert cli.main(["pack", str(source), "--output", str(folder)]) == 0
    with open_checkpoint(source) as one, open_checkpoint(folder) as other:
        assert other.config == one.config
        assert other.weights_name == one.weights_name
        assert logits(other) == logits(one)
        if kind == "hf":
            assert_same_tokenizer(Tokenizer.from_files(one.tokenizer), other)


def test_tokenizer_and_chat_of_a_gguf_file_stay_the_same(packed):
    with open_checkpoint(resolve_model(None)) as one, open_checkpoint(packed) as other:
        assert_same_tokenizer(Tokenizer.from_files(one.tokenizer), other)


def assert_same_tokenizer(one: Tokenizer, checkpoint) -> None:
    other = Tokenizer.from_files(checkpoint.tokenizer)
    for flag in (False, True):
        text = TEXT + "".join(one.special_tokens.values())
        ids = one.encode(text, add_bos=flag, parse_special=flag)
        assert other.encode(text, add_bos=flag, parse_special=flag) == ids
        assert other.decode(ids, skip_special=flag) == one.decode(ids, skip_special=flag)
    for name in ("eos_ids", "bos_id", "unused_ids", "adds_bos", "special_tokens", "vocab_size"):
        assert getattr(other, name) == getattr(one, name)
    assert (other.chat_template is None) == (one.chat_template is None)
    if one.chat_template is not None:
        assert other.chat_template.source() == one.chat_template.source()
        assert other.encode_chat(CHAT) == one.encode_chat(CHAT)


def test_quantizing_while_packing_is_quantizing_while_loading(capsys, tmp_path, text):
    source = tiny_models.write_hf(tiny_models.tiny_model("llama3"), tmp_path / "source")
    folder = tmp_path / "packed"
    arguments = ["pack", str(source), "-o", str(folder), "--weights", "q8_0", "--threads", "2"]
    assert cli.main(arguments) == 0
    before = perplexity(capsys, text, source, "--weights", "q8_0")
    assert before["logits_sha256"] != perplexity(capsys, text, source)["logits_sha256"]
    for options in ((), ("--weights", "q8_0")):
        after = perplexity(capsys, text, folder, *options)
        assert after["logits_sha256"] == before["logits_sha256"]
        assert after["weights"] == "q8_0"
    arguments = ("perplexity", str(folder), "--file", str(text), "--weights", "q4_0")
    assert "is q8_0 already and cannot become 'q4_0'" in error_of(capsys, *arguments)


def test_packed_floats_are_not_quantized_again(capsys, tmp_path, text):
    source = tiny_models.write_hf(tiny_models.tiny_model("qwen2"), tmp_path / "source")
    folder = tmp_path / "packed"
    assert cli.main(["pack", str(source), "-o", str(folder)]) == 0
    arguments = ("perplexity", str(folder), "--file", str(text), "--weights", "q8_0")
    assert "pack the original model with --weights q8_0" in error_of(capsys, *arguments)


def test_packed_bytes_are_what_the_format_says(packed):
    """quantizer/FORMAT.md, sections 3 and 4, read with numpy."""
    data = (packed / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    chunk, biased = int(metadata["layout"][1]), metadata["layout"].endswith("b")
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        words = np.frombuffer(data[begin:end].ljust(-(-(end - begin) // 8) * 8, b"\0"), "<u8")
        weights = 2 * np.arange(len(words), dtype=np.uint64) + np.uint64(1)
        checksum = int((words * weights).sum(dtype=np.uint64))
        assert metadata[name].split(" ")[3] == f"{checksum:016x}"

    with open_checkpoint(resolve_model(None)) as source:
        embedding = next(t for t in source.tensors if t.role == Role.TOKEN_EMBEDDING)
        rows = np.frombuffer(embedding.data, np.uint8).reshape(embedding.rows, -1, 34).copy()
    begin, end = (start + o for o in header["model.embed_tokens.weight"]["data_offsets"])
    groups = np.frombuffer(data[begin:end], np.uint8).reshape(-1, rows.shape[1], 1088)
    codes = groups[..., :1024].reshape(*groups.shape[:2], 32 // chunk, 32, chunk)
    codes = codes.transpose(0, 3, 1, 2, 4).reshape(-1, rows.shape[1], 32)
    scales = groups[..., 1024:].reshape(*groups.shape[:2], 32, 2).transpose(0, 2, 1, 3)
    found = np.concatenate([scales.reshape(-1, rows.shape[1], 2), codes ^ (128 * biased)], axis=-1)
    assert np.array_equal(found[: len(rows)], rows)


def test_packed_model_can_be_packed_for_another_level(capsys, tmp_path, text, packed):
    isa = other_layout()
    again = tmp_path / "again"
    assert cli.main(["pack", str(packed), "-o", str(again), "--isa", isa]) == 0
    back = tmp_path / "back"
    assert cli.main(["pack", str(again), "-o", str(back)]) == 0
    weights = [(path / "model.safetensors").read_bytes() for path in (packed, again, back)]
    assert weights[0] == weights[2] != weights[1]


def test_output_is_needed_and_must_be_new(capsys, packed):
    assert cli.main(["pack"]) == 2
    assert "--output: not given" in capsys.readouterr().err
    before = sorted(packed.iterdir())
    assert f"{packed}: exists and is not an empty directory" in error_of(
        capsys, "pack", "-o", str(packed)
    )
    assert sorted(packed.iterdir()) == before


def test_unpacked_model_cannot_be_mapped(capsys, text):
    arguments = ("perplexity", "--file", str(text), "--load", "map")
    assert "load 'map' needs packed weights" in error_of(capsys, *arguments)


def damaged(packed: Path, tmp_path: Path, change) -> Path:
    """A copy of a packed directory with its weights file changed."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in packed.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    data = bytearray((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").write_bytes(change(data))
    return folder


def replaced(old: bytes, new: bytes):
    def change(data: bytearray) -> bytes:
        assert len(old) == len(new)
        assert data.count(old) == 1
        return bytes(data.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (replaced(b'"numerics":"3"', b'"numerics":"9"'), "version 9 of the numeric contract"),
        (replaced(b'"version":"2"', b'"version":"7"'), "version is '7'"),
        (replaced(b'"format":"lanewise"', b'"format":"lanewisf"'), "format is 'lanewisf'"),
        (lambda data: re.sub(rb'"layout":"c\d', b'"layout":"c9', data), "layout 'c9"),
        (lambda data: data[:-1], "model.norm.weight"),
        (lambda data: data[:-70_000], "end beyond the file's"),
        (
            lambda data: data[:-100_000] + bytes([data[-100_000] ^ 1]) + data[-99_999:],
            "checksum",
        ),
        (
            lambda data: re.sub(rb'(proj.weight":"q8_0 )\d', rb"\g<1>9", data, count=1),
            "has shape",
        ),
    ],
)
@pytest.mark.parametrize("load", ["map", "copy"])
def test_damage_is_one_line_that_names_file_tensor_and_value(
    capsys, tmp_path, text, packed, change, says, load
):
    folder = damaged(packed, tmp_path, change)
    error = error_of(capsys, "perplexity", str(folder), "--file", str(text), "--load", load)
    assert error.startswith(f"lanewise: {folder}")
    assert says in error
    if says in ("checksum", "layout 'c9"):
        assert re.search(r"tensor model\.(layers\.\d+|embed_tokens|norm)\S*: ", error)
    assert error.count("\n") == 1
