"""``lanewise quantize`` on small models: what it writes, what it refuses, what interrupts it."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_models
from lanewise import cli
from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.loading.base.formats import HELD, MATRIX_TYPES, TensorType, row_bytes
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.settings import QUANTIZED_FORMATS
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.coded import CODED_TYPES, HELD_TYPES
from lanewise_quantizer.gguf_blocks import LAYOUTS
from lanewise_quantizer.storage import decode_rows
from quantizing import quantize, write_model
from topics import thorough

pytestmark = pytest.mark.slow
USUAL = ("q8_0", "q4_0", "q4_k", "cb3", "fp6")  # a kind of code each
every_format = pytest.mark.parametrize(
    "name", [*USUAL, *thorough(*(name for name in QUANTIZED_FORMATS if name not in USUAL))]
)
LARGEST_ERROR = {2: 0.16, 3: 0.035, 4: 0.02, 5: 0.005, 6: 0.001, 8: 0.0002}  # of the variance
FP6_ERROR = 0.003  # its steps grow with the weight


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A llama with rows of 256 and 512 inputs, which every type can have."""
    return write_model(tmp_path_factory.mktemp("source") / "model", hidden=256, ffn=512)


def weights_of(path: Path) -> dict[tuple, np.ndarray]:
    """All tensors as floats, by role and layer, rows in half-split order."""
    found = {}
    with open_checkpoint(path) as checkpoint:
        for tensor in checkpoint.tensors:
            rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, -1).copy()
            table = None if tensor.table is None else np.frombuffer(tensor.table, np.int8)
            weights = decode_rows(tensor.type.name.lower(), rows, tensor.cols, table)
            if tensor.rope_heads:
                flat = weights if tensor.rows > 1 else weights.T
                halves = flat.reshape(tensor.rope_heads, -1, 2, flat.shape[1]).swapaxes(1, 2)
                weights = halves.reshape(weights.shape)
            found[tensor.role.name, tensor.layer] = weights
    return found


def test_formats_are_those_that_the_quantizer_and_the_loader_know():
    assert set(QUANTIZED_FORMATS) == set(CODED_TYPES)
    of_files = {kind.name.lower() for kind in HELD}
    known = {*CODED_TYPES, *HELD_TYPES, *of_files, "f32", "f16", "bf16"}
    assert {kind.name.lower() for kind in MATRIX_TYPES} == known
    for name, kind in (CODED_TYPES | HELD_TYPES).items():
        assert TensorType[name.upper()] == kind.id
        for cols in (32, 96, 256, 288, 2048):
            expected = kind.row_bytes(cols)
            if name in LAYOUTS:
                inputs, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind.id)]
                expected = 0 if cols % inputs else cols // inputs * size
            assert row_bytes(TensorType[name.upper()], cols) == expected
        assert row_bytes(TensorType[name.upper()], 40) == 0


@every_format
def test_every_format_is_written_and_read(source, tmp_path, capsys, name):
    output = tmp_path / "out"
    assert quantize(source, output, "--format", name) == 0
    bits = CODED_TYPES[name].bits
    line = capsys.readouterr().out
    assert line.startswith(f"{output}: ")
    assert f": 21 {name}, 2 " in line or f": 23 {name}\n" in line
    before, after = weights_of(source), weights_of(output)
    assert before.keys() == after.keys()
    with open_checkpoint(source) as one, open_checkpoint(output) as other:
        assert other.config == one.config
        assert other.weights_name == name
        assert other.tokenizer.text_files == one.tokenizer.text_files
    for key, weights in before.items():
        error = ((after[key] - weights) ** 2).mean() / weights.var()
        if weights.shape[0] == 1:
            assert error == 0
        else:
            head = key[0] in ("TOKEN_EMBEDDING", "OUTPUT")
            limit = LARGEST_ERROR[max(6, bits) if head else bits]
            if name == "fp6":
                limit = FP6_ERROR
            if name == "t2":  # on text: errors grow so that those of outputs shrink
                limit = 0.01 if head else 0.3
            assert error < limit, key


def test_what_is_written_is_what_the_format_page_says(source, tmp_path):
    output = tmp_path / "out"
    quantize(source, output, "--format", "cb2", "--head", "q8_0")
    data = (output / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    notes = header.pop("__metadata__")
    assert (notes["format"], notes["version"], notes["layout"]) == ("lanewise", "2", "rows")
    assert "numerics" not in notes
    tensors = load_file(output / "model.safetensors")  # the public reader wants no holes
    for name, tensor in tensors.items():
        kind, rows, cols, checksum, *table = notes[name].split(" ")
        assert (kind == "cb2") == (len(table) == 1)
        words = np.frombuffer(tensor.tobytes() + bytes(-tensor.nbytes % 8), "<u8").tolist()
        total = sum(word * (2 * i + 1) for i, word in enumerate(words)) % 2**64
        assert f"{total:016x}" == checksum
        if kind == "f32":
            assert tensor.dtype == np.float32
        else:
            assert tensor.shape == (int(rows), row_bytes(TensorType[kind.upper()], int(cols)))
    q = "model.layers.0.self_attn.q_proj.weight"
    assert notes[q].startswith("cb2 256 256 ")
    assert notes["lm_head.weight"].startswith("q8_0 ")
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    assert (config["quant_method"], config["format"]) == ("lanewise", "cb2")


GGUF_FORMATS = [name for name in QUANTIZED_FORMATS if name in LAYOUTS]


@pytest.mark.parametrize("name", GGUF_FORMATS)
def test_gguf_holds_the_same_weights(source, tmp_path, name):
    folder, file = tmp_path / "folder", tmp_path / "file.gguf"
    assert quantize(source, folder, "--format", name) == 0
    assert quantize(source, file, "--format", name, "--gguf") == 0
    one, other = weights_of(folder), weights_of(file)
    assert all((one[key] == other[key]).all() for key in one)
    reader = gguf.GGUFReader(file)
    kinds = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
    assert kinds["blk.1.ffn_down.weight"] == gguf.GGMLQuantizationType[name.upper()]
    assert reader.fields["general.file_type"].contents() == gguf.LlamaFileType[
        {"q2_k": "MOSTLY_Q2_K", "q3_k": "MOSTLY_Q3_K_M", "q4_k": "MOSTLY_Q4_K_M",
         "q5_k": "MOSTLY_Q5_K_M", "mxfp4": "MOSTLY_MXFP4_MOE"}.get(name, f"MOSTLY_{name.upper()}")
    ]  # fmt: skip
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
@pytest.mark.parametrize("kind", ["hf", "gguf"])
@pytest.mark.parametrize("to", ["folder", "file"])
def test_families_from_and_to_both_kinds_of_file(tmp_path, family, kind, to):
    """Rows of 40 inputs and the like: what has no blocks of 32 becomes F16."""
    model = tiny_models.tiny_model(family)
    if kind == "hf":
        source = tiny_models.write_hf(model, tmp_path / "source")
    else:
        source = tiny_models.write_gguf(model, tmp_path / "source.gguf")
    output = tmp_path / ("out" if to == "folder" else "out.gguf")
    options = ["--format", "q8_0"] + (["--gguf"] if to == "file" else [])
    if family == "mistral" and (kind, to) == ("hf", "file"):
        assert quantize(source, output, *options) == 1  # GGUF's llama has no sliding window
        return
    assert quantize(source, output, *options) == 0
    with open_checkpoint(source) as one, open_checkpoint(output) as other:
        assert other.config == one.config
        if kind == "hf":
            assert_same_tokenizer(one, other)
        else:
            assert tokenizer_keys(one) == tokenizer_keys(other)
    before, after = weights_of(source), weights_of(output)
    for key, weights in before.items():
        assert ((after[key] - weights) ** 2).mean() <= 0.0002 * weights.var(), key


def tokenizer_keys(checkpoint: Checkpoint) -> dict[str, object]:
    metadata = checkpoint.tokenizer.gguf or {}
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}


def assert_same_tokenizer(one: Checkpoint, other: Checkpoint) -> None:
    first, second = (Tokenizer.from_files(c.tokenizer) for c in (one, other))
    for text in ("Hello <|end|> there", "3.14 ünïcödé", " a  b\n\n c", "don't 12345 你好"):
        for options in ({"add_bos": True}, {"add_bos": False}):
            ids = first.encode(text, **options, parse_special=True)
            assert ids == second.encode(text, **options, parse_special=True)
            assert len(ids) > 2
    assert first.eos_ids == second.eos_ids
    assert first.adds_bos == second.adds_bos


def test_what_is_quantized_already_stays_as_it_is(source, tmp_path):
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    quantize(source, first, "--format", "q4_0", "--gguf")
    assert quantize(first, second, "--format", "q4_0", "--gguf") == 0
    assert first.read_bytes() == second.read_bytes()
    third = tmp_path / "c"
    assert quantize(first, third, "--format", "a8_g32", "--head", "q6_k") == 0
    one, other = weights_of(first), weights_of(third)
    for key, weights in one.items():
        assert ((other[key] - weights) ** 2).mean() <= 0.0001 * weights.var()


@pytest.mark.parametrize(
    ("asked", "own", "of_gguf"),
    [
        ("q2_k", "cb2", "iq4_nl"),
        ("q3_k", "cb3", "iq4_nl"),
        ("q4_k", "iq4_nl", "iq4_nl"),
        ("q5_k", "q5_0", "q5_0"),
        ("iq4_xs", "cb4", "iq4_nl"),
    ],
)
def test_rows_that_blocks_do_not_divide_have_the_nearest_type_and_are_told(
    tmp_path, capsys, asked, own, of_gguf
):
    source = write_model(tmp_path / "source", hidden=96, ffn=256, head_dim=24)

    def bits(kind, cols):
        return f"{8 * row_bytes(TensorType[kind.upper()], cols) / cols:.3g}"

    for kind, name, more in ((own, "own", ()), (of_gguf, "m.gguf", ("--gguf",))):
        assert quantize(source, tmp_path / name, "--format", asked, *more) == 0
        told = capsys.readouterr()
        assert f" 18 {kind}" in told.out
        assert f" 3 {asked}" in told.out  # of `down`, whose rows have 256 inputs
        assert " in the types asked for): " in told.out
        assert (
            f"warning: 18 of 23 matrices: {kind} instead of {asked},"
            f" {bits(kind, 96)} bits per weight instead of {bits(asked, 4096)}, because rows of 96"
            " inputs are no multiple of 256\n"
        ) in told.err


def test_stored_rows_need_multiples_of_32_only_whatever_the_group(tmp_path, capsys):
    source = write_model(tmp_path / "source", hidden=96, ffn=128, head_dim=24)
    assert quantize(source, tmp_path / "own", "--format", "a4_g128", "--head", "q8_0") == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1
    assert not told.err


def change(source: Path, target: Path, name: str, value: float, at=(5, 7)) -> Path:
    """A copy of a model with one weight changed."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    tensors = {
        key: tensor.copy() for key, tensor in load_file(source / "model.safetensors").items()
    }
    tensors[name][at if tensors[name].ndim == 2 else at[0]] = value
    save_file(tensors, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", np.nan, "row 5, column 7 is nan; accepted: finite"),
        ("model.layers.0.self_attn.q_proj.weight", -np.inf, "row 5, column 7 is -inf"),
        ("model.norm.weight", np.inf, "column 5 is inf; accepted: finite numbers"),
        ("model.layers.2.mlp.up_proj.weight", 1e9, "a scale or minimum of 1.25e+08 is needed; acc"),
    ],
)
@pytest.mark.parametrize("to", ["folder", "file"])
def test_a_weight_that_cannot_be_is_named(source, tmp_path, capsys, name, value, says, to):
    broken = change(source, tmp_path / "broken", name, value)
    output = tmp_path / ("out" if to == "folder" else "out.gguf")
    extra = ["--gguf"] if to == "file" else []
    assert quantize(broken, output, "--format", "q4_0", *extra) == 1
    error = capsys.readouterr().err
    assert f"{broken}: tensor '{name}': " in error
    assert says in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken"]


def test_all_zero_tensors_stay_zero(source, tmp_path):
    zeros = tmp_path / "zeros"
    name = "model.layers.0.mlp.down_proj.weight"
    change(source, zeros, name, 0.0, at=slice(None))
    for kind in ("q4_0", "q4_k", "cb2", "mxfp4", "a4_g64"):
        assert quantize(zeros, tmp_path / kind, "--format", kind) == 0
        assert not weights_of(tmp_path / kind)["FFN_DOWN", 0].any()


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        (["--format", "q4"], 2, "--format: 'q4' cannot be used; accepted: q4_0 | q4_1"),
        (["--format", "cb2", "--gguf"], 1, "--format: cb2 is no type of GGUF files; accepted"),
        (["--head", "a4_g64", "--gguf"], 1, "--head: a4_g64 is no type of GGUF files"),
        (["--head", "x"], 2, "--head: 'x' cannot be used; accepted: q4_0"),
        (["--threads", "0"], 2, "--threads: '0' cannot be used; accepted: a whole number from 1"),
    ],
)
def test_options_that_cannot_be(source, tmp_path, capsys, options, status, says):
    assert quantize(source, tmp_path / "out", *options) == status
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be(source, tmp_path, capsys):
    assert cli.main(["quantize", str(source)]) == 2
    assert "--output: not given; accepted: a directory" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert quantize(source, tmp_path / "full") == 1
    assert "exists and is not an empty directory" in capsys.readouterr().err
    assert quantize(source, tmp_path / "full" / "file", "--gguf") == 1
    assert "exists; give a new file" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert quantize(source, tmp_path / "empty") == 0


def test_sources_that_cannot_be(source, tmp_path, capsys):
    assert quantize(tmp_path / "none", tmp_path / "out") == 1
    assert "no such file or directory" in capsys.readouterr().err
    tensors = load_file(source / "model.safetensors")
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for path in source.iterdir():
        (wrong / path.name).write_bytes(path.read_bytes())
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name].astype(np.int8)}, wrong / "model.safetensors")
    assert quantize(wrong, tmp_path / "out") == 1
    assert f"tensor '{name}' has type I8; accepted are F32, F16, BF16" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["wrong"]
