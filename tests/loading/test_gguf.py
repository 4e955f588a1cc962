"""The GGUF reader: every value type, every kind of damage, and its speed."""

from __future__ import annotations

import struct
from contextlib import closing
from pathlib import Path

import gguf
import pytest
from model_files import FAMILIES, TinyModel, write_gguf

from growth import grows_no_faster
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.files.gguf import GgufFile


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def header(version: int = 3, tensors: int = 0, metadata: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata)


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return string(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def read(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def test_reads_every_value_type(tmp_path: Path) -> None:
    values = [
        (0, struct.pack("<B", 200), 200),
        (1, struct.pack("<b", -2), -2),
        (2, struct.pack("<H", 60000), 60000),
        (3, struct.pack("<h", -3), -3),
        (4, struct.pack("<I", 4_000_000_000), 4_000_000_000),
        (5, struct.pack("<i", -5), -5),
        (6, struct.pack("<f", 0.5), 0.5),
        (7, b"\x01", True),
        (8, string("Grüße"), "Grüße"),
        (10, struct.pack("<Q", 2**60), 2**60),
        (11, struct.pack("<q", -(2**60)), -(2**60)),
        (12, struct.pack("<d", 0.1), 0.1),
        (9, struct.pack("<IQ", 5, 3) + struct.pack("<3i", 1, -1, 2), [1, -1, 2]),
        (9, struct.pack("<IQ", 7, 2) + b"\x00\x01", [False, True]),
        (9, struct.pack("<IQ", 8, 2) + string("a") + string("ü"), ["a", "ü"]),
        (9, struct.pack("<IQ", 9, 1) + struct.pack("<IQB", 0, 1, 9), [[9]]),
    ]
    body = b"".join(
        string(f"k{i}") + struct.pack("<I", kind) + raw for i, (kind, raw, _) in enumerate(values)
    )
    for version in (2, 3):
        file = read(tmp_path, header(version, metadata=len(values)) + body)
        assert file.metadata == {f"k{i}": value for i, (_, _, value) in enumerate(values)}
        file.close()


def test_agrees_with_the_reference_reader(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["qwen3"], {"general.alignment": 64})
    file = GgufFile(path)
    reference = gguf.GGUFReader(path)
    assert {t.name for t in reference.tensors} == set(file.tensors)
    for tensor in reference.tensors:
        mine = file.tensors[tensor.name]
        assert (mine.start, mine.n_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(tensor.shape)
        assert mine.type == tensor.tensor_type
    for name, field in reference.fields.items():
        if not name.startswith("GGUF."):
            assert file.metadata[name] == field.contents()
    file.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"GG", "this is not a GGUF file"),
        (b"PK\x03\x04" + bytes(40), "this is not a GGUF file"),
        (header(1), "version at byte 4: 1 is not supported; accepted are 2 and 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "a big-endian file"),
        (b"GGUF\x03\x00\x00\x00\x01", "tensor count at byte 8: needs 8 bytes"),
        (header(tensors=2**60), "tensor count at byte 8: 1152921504606846976 cannot fit"),
        (header(metadata=2**60), "metadata count at byte 16"),
        (
            header(metadata=1) + struct.pack("<Q", 2**63) + bytes(20),
            "metadata key 0 at byte 24: its length 9223372036854775808 is above 1024",
        ),
        (
            header(metadata=1) + string("general.name") + struct.pack("<IQ", 8, 999) + b"x",
            "general.name at byte 56: needs 999 bytes, but the file ends at byte 57",
        ),
        (header(metadata=1) + string("k") + struct.pack("<I", 13), "value type 13 is unknown"),
        (
            header(metadata=1) + string("k") + struct.pack("<IIQ", 9, 8, 2**61) + bytes(9),
            "k element count at byte 41: 2305843009213693952 cannot fit",
        ),
        (
            header(metadata=1) + string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 40,
            "arrays nested deeper than 2",
        ),
        (
            header(metadata=1)
            + string("k")
            + struct.pack("<IIQ", 9, 8, 2)
            + string("ok")
            + struct.pack("<Q", 2)
            + b"\xff\xfe",
            "k[1] at byte 59: not UTF-8",
        ),
        (
            header(metadata=1) + string("k") + struct.pack("<IIQ", 9, 8, 2) + string("ok" * 9),
            "length of k[1]",
        ),
        (
            header(metadata=2) + (string("k") + struct.pack("<IB", 0, 1)) * 2,
            "metadata key 1 at byte 38: 'k' occurs twice",
        ),
        (
            header(metadata=1) + string("general.alignment") + struct.pack("<II", 4, 48),
            "general.alignment: 48 is not a power of two",
        ),
        (
            header(tensors=1) + entry("w", (32,), 99, 0),
            "tensor 'w' at byte 24: type 99 is unknown; accepted are F32, F16, BF16, Q4_0",
        ),
        (header(tensors=1) + entry("w", (1,) * 5, 0, 0), "5 dimensions; accepted are 1 to 4"),
        (header(tensors=1) + entry("w", (4, 0), 0, 0), "has a dimension of 0"),
        (header(tensors=1) + entry("w", (33,), 2, 0), "are not whole Q4_0 blocks of 32"),
        (header(tensors=1) + entry("w", (32,), 0, 8), "is not a multiple of the alignment 32"),
        (header(tensors=1) + entry("w", (32,), 0, 0), "end beyond the file's 57 bytes"),
        (
            header(tensors=1) + entry("w", (2**62, 2**62), 0, 0) + bytes(64),
            "end beyond the file's",
        ),
        (
            header(tensors=2) + entry("w", (32,), 0, 0) + entry("w", (32,), 0, 128) + bytes(512),
            "tensor 'w' at byte 57: occurs twice",
        ),
        (
            header(tensors=2) + entry("a", (32,), 0, 0) + entry("b", (32,), 0, 96) + bytes(512),
            "tensor 'b' at byte 192 overlaps 'a', bytes 96 to 224",
        ),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path, content)
    assert message in str(caught.value)
    assert "m.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gpt9"}, "'gpt9' is not supported; accepted are llama, "),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"split.count": 3}, "split.count is 3; 1, as the file's name says"),
        ({"llama.rope.scaling.type": "ntk"}, "rope.scaling.type is 'ntk'; none, linear, longrope"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length is 8"),
        ({"llama.attention.head_count": "four"}, "llama.attention.head_count is 'four'"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads are not a multiple of 3"),
        ({"llama.attention.head_count_kv": [2, 1]}, "the same number for every layer"),
        ({"llama.block_count": 3}, "missing tensors 'blk.2.attn_norm.weight'"),
        ({"llama.block_count": 10**9}, "llama.block_count is 1000000000"),
        ({"llama.block_count": 1}, "unknown tensors 'blk.1.attn_k.weight'"),
        ({"llama.feed_forward_length": 96}, "tensor 'blk.0.ffn_gate.weight' has shape [64, 48]"),
        ({"llama.embedding_length": 0}, "llama.embedding_length is 0; a whole number from 1"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "a positive finite number"),
        (
            {"llama.attention.layer_norm_rms_epsilon": float("nan")},
            "layer_norm_rms_epsilon is nan; a positive finite number",
        ),
        ({"llama.attention.key_length": 300}, "300"),
    ],
)
def test_unusable_metadata_is_explained(
    tmp_path: Path, metadata: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"])
    real = GgufFile.__init__

    def changed(self: GgufFile, path: Path) -> None:
        real(self, path)
        self.metadata.update(metadata)

    monkeypatch.setattr(GgufFile, "__init__", changed)
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (gguf.GGMLQuantizationType.I8, "has type I8; accepted are F32, F16, BF16, Q4_0"),
        (258, "type 258 is unknown; accepted are F32"),
        (31, "has type Q4_0_4_4; accepted are"),
        (38, "this type was removed from GGUF: requantize the model"),
    ],
)
def test_matrix_types_without_kernels_are_refused(tmp_path: Path, kind: int, message: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", FAMILIES["llama"])
    content = path.read_bytes()
    at = content.index(string("blk.0.attn_q.weight")) + len(string("blk.0.attn_q.weight")) + 20
    path.write_bytes(content[:at] + struct.pack("<I", kind) + content[at + 4 :])
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight") as caught:
        open_checkpoint(path)
    assert message in str(caught.value)


def test_quantized_norm_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", TinyModel("llama", extra_config={}))
    content = path.read_bytes()
    name = string("output_norm.weight")
    at = content.index(name) + len(name) + 12
    path.write_bytes(content[:at] + struct.pack("<I", 24) + content[at + 4 :])
    with pytest.raises(ModelFileError, match="has type I8; accepted are F32, F16, BF16"):
        open_checkpoint(path)


def test_a_big_vocabulary_is_read_in_the_time_of_ten_small_ones(tmp_path: Path) -> None:
    def write(count: int) -> Path:
        tokens = b"".join(string(f"token{i}") for i in range(count))
        merges = b"".join(string(f"t{i} o{i}") for i in range(count))
        content = header(metadata=4)
        content += string("tokens") + struct.pack("<IIQ", 9, 8, count) + tokens
        content += string("merges") + struct.pack("<IIQ", 9, 8, count) + merges
        content += string("types") + struct.pack("<IIQ", 9, 5, count) + bytes(4 * count)
        content += string("scores") + struct.pack("<IIQ", 9, 6, count) + bytes(4 * count)
        path = tmp_path / f"{count}.gguf"
        path.write_bytes(content)
        return path

    def read(path: Path, count: int) -> None:
        with closing(GgufFile(path)) as file:
            assert file.metadata["tokens"][-1] == f"token{count - 1}"

    small, big = write(15_000), write(150_000)
    assert grows_no_faster(lambda: read(small, 15_000), lambda: read(big, 150_000), 40)
