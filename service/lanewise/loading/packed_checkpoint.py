"""Opens and writes directories of packed weights, which are used where they lie in the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from lanewise.loading.architectures import (
    FAMILIES,
    HF,
    SourceTensor,
    bind_tensors,
    check_config,
    is_vector,
)
from lanewise.loading.checkpoint import (
    Checkpoint,
    ModelConfig,
    ModelFileError,
    Packing,
    Tensor,
    TensorType,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.mapped_file import HUGE_PAGE
from lanewise.loading.rope import checked_factors
from lanewise.loading.safetensors import SafetensorsFile, SafetensorsTensor
from lanewise.loading.tokenizer_files import (
    GGUF_TOKENIZER,
    JSON_FILES,
    model_name,
    read_tokenizer_files,
)

METHOD = "lanewise"
FORMAT_VERSION = 1
WEIGHTS = "model.safetensors"
ALIGNMENT = 64
AGAIN = "pack the model again with this version"


def is_packed(config: Fields) -> bool:
    """Return whether a config.json is that of a packed directory."""
    found = config.values.get("quantization_config")
    return isinstance(found, Mapping) and found.get("quant_method") == METHOD


def open_packed(path: Path, config: Fields) -> Checkpoint:
    """Open a packed directory; raises ModelFileError for anything that cannot be served."""
    packed = Fields(config.values["quantization_config"], f"{config.source}: quantization_config")
    if packed.integer("version") != FORMAT_VERSION:
        raise packed.fail("version", f"{FORMAT_VERSION} ({AGAIN})")
    model_config = read_config(packed)
    tokenizer = read_tokenizer_files(path, model_config.vocab_size)
    file = SafetensorsFile(path / WEIGHTS)
    try:
        if model_config.n_layers > len(file.tensors):
            raise ModelFileError(
                f"{packed.source}: n_layers is {model_config.n_layers}; at most the number of"
                f" tensors, {len(file.tensors)}, is needed"
            )
        numerics = read_numerics(file)
        sources = {
            name: source_tensor(file, tensor, numerics) for name, tensor in file.tensors.items()
        }
        tensors = bind_tensors(model_config, sources, HF, False, str(path))
    except BaseException:
        file.close()
        raise
    name, is_on_huge_pages = model_name(path), file.file.is_on_huge_pages
    return Checkpoint(path, name, model_config, tensors, tokenizer, file.close, is_on_huge_pages)


def read_numerics(file: SafetensorsFile) -> int:
    """Return the version of the numeric contract that a file of this format was packed for."""
    metadata = Fields(file.metadata, f"{file.path}: __metadata__")
    if metadata.text("format") != METHOD:
        raise metadata.fail("format", repr(METHOD))
    if metadata.text("version") != str(FORMAT_VERSION):
        raise metadata.fail("version", f"'{FORMAT_VERSION}' ({AGAIN})")
    if not metadata.text("numerics").isdecimal():
        raise metadata.fail("numerics", "a number")
    return int(metadata.text("numerics"))


def source_tensor(file: SafetensorsFile, tensor: SafetensorsTensor, numerics: int) -> SourceTensor:
    """Return one tensor with what the metadata says about it: type, shape, checksum."""
    metadata = Fields(file.metadata, f"{file.path}: __metadata__")
    words = metadata.text(tensor.name).split(" ")
    wanted = "'type rows columns checksum', as in 'q4_0 2048 2048 0123456789abcdef'"
    try:
        kind, rows, cols = TensorType[words[0].upper()], int(words[1]), int(words[2])
        checksum = int(words[3], 16)
    except (KeyError, ValueError, IndexError):
        raise metadata.fail(tensor.name, wanted) from None
    if len(words) != 4 or not (0 < rows < 2**31 and 0 < cols < 2**31 and 0 <= checksum < 2**64):
        raise metadata.fail(tensor.name, wanted)
    is_matrix = tensor.dtype == "U8"
    if is_matrix and tensor.start % ALIGNMENT:
        raise ModelFileError(
            f"{file.path}: tensor {tensor.name!r} begins at byte {tensor.start}; a multiple of"
            f" {ALIGNMENT} is needed"
        )
    return SourceTensor(
        where=str(file.path),
        shape=(rows, cols) if is_matrix else tensor.shape,
        type=kind,
        data=file.file.view[tensor.start : tensor.start + tensor.n_bytes],
        release=file.file.releaser(tensor.start, tensor.n_bytes),
        packing=Packing(metadata.text("layout") if is_matrix else "", checksum, numerics),
    )


def read_config(packed: Fields) -> ModelConfig:
    """Return the model config, which is stored as it is and not as its family spells it."""
    values = packed.values.get("model")
    if not isinstance(values, Mapping):
        raise packed.fail("model", "an object")
    model = Fields(values, f"{packed.source}: model")
    names = {item.name for item in fields(ModelConfig)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise ModelFileError(f"{model.source}: {odd}: missing or unknown; {AGAIN}")
    if model.text("architecture") not in {family.name for family in FAMILIES}:
        raise model.fail("architecture", f"one of {', '.join(f.name for f in FAMILIES)}")
    head_dim = model.integer("head_dim")
    sizes = ("n_layers", "hidden_size", "ffn_size", "n_heads", "n_kv_heads", "vocab_size")
    config = ModelConfig(
        architecture=model.text("architecture"),
        **{name: model.integer(name) for name in sizes},
        head_dim=head_dim,
        context_length=model.integer("context_length"),
        rms_norm_eps=model.number("rms_norm_eps"),
        rope_theta=model.number("rope_theta"),
        rope_factors=read_factors(model, head_dim),
        sliding_window=model.integer("sliding_window", default=0, least=0) or None,
        tied_embeddings=model.flag("tied_embeddings", default=False),
        qkv_bias=model.flag("qkv_bias", default=False),
        qk_norm=model.flag("qk_norm", default=False),
    )
    return check_config(config, model.source)


def read_factors(model: Fields, head_dim: int) -> tuple[float, ...] | None:
    """Return the divisors of the RoPE frequencies, or None when all are 1."""
    found = model.values["rope_factors"]
    if found is None:
        return None
    if not isinstance(found, list) or not all(type(item) is float for item in found):
        raise model.fail("rope_factors", "null or a list of numbers")
    return checked_factors(tuple(found), head_dim, f"{model.source}: rope_factors")


def check_folder(folder: Path) -> None:
    """Raise ModelFileError unless a packed model can be written to ``folder``."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder}: exists and is not an empty directory; give a new one")


def write_packed(
    folder: Path, checkpoint: Checkpoint, tensors: Sequence[Tensor], level: str
) -> int:
    """Write packed ``tensors`` and the small files of ``checkpoint``; returns the bytes of weights.

    The folder must be new or empty. What is written of it goes again when something fails.
    """
    check_folder(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        size = write_weights(folder / WEIGHTS, tensors, level)
        write_tokenizer(folder, checkpoint)
        write_json(folder / "config.json", packed_config(checkpoint))  # last: without it, no model
    except BaseException:
        for path in folder.iterdir():
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise
    return size


def packed_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return config.json: that of the source if it had one, and the model config as it is."""
    family = next(f for f in FAMILIES if f.name == checkpoint.config.architecture)
    own = {"model_type": family.hf} | dict(checkpoint.tokenizer.json_files.get("config.json", {}))
    about = {"quant_method": METHOD, "version": FORMAT_VERSION, "model": asdict(checkpoint.config)}
    return own | {"quantization_config": about}


def write_tokenizer(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the small files of a directory as they are, or the tokenizer's part of GGUF metadata.

    JSON holds every value of the metadata exactly, and is read ten times as fast as GGUF.
    """
    files = checkpoint.tokenizer
    if files.gguf is not None:
        kept = {key: value for key, value in files.gguf.items() if key.startswith("tokenizer.")}
        write_json(folder / GGUF_TOKENIZER, kept)
        return
    for name in JSON_FILES:
        if name in files.json_files and name != "config.json":
            write_json(folder / name, files.json_files[name])
    for name, text in files.text_files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that holds exactly ``value``."""
    path.write_text(json.dumps(value), encoding="utf-8")


def write_weights(path: Path, tensors: Iterable[Tensor], level: str) -> int:
    """Write a safetensors file whose matrices lie at multiples of 64 bytes; returns its size."""
    # Matrices are whole multiples of 64 bytes; vectors, which are copied when loaded, come last.
    ordered = sorted(tensors, key=lambda tensor: is_vector(tensor.role))
    metadata = {"format": METHOD, "version": str(FORMAT_VERSION), "level": level}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for tensor in ordered:
        size, packing = tensor.data.nbytes, tensor.packing
        assert packing is not None
        if not is_vector(tensor.role):
            metadata |= {"layout": packing.layout, "numerics": str(packing.numerics)}
        header[tensor.name] = {
            "dtype": "F32" if is_vector(tensor.role) else "U8",
            "shape": [tensor.cols if is_vector(tensor.role) else size],
            "data_offsets": [offset, offset + size],
        }
        shape = f"{tensor.type.name.lower()} {tensor.rows} {tensor.cols}"
        metadata[tensor.name] = f"{shape} {packing.checksum:016x}"
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start = memoryview(len(text).to_bytes(8, "little") + text)
    write_blocks(path, [start, *(tensor.data for tensor in ordered)])
    return len(start) + offset


def write_blocks(path: Path, parts: Iterable[memoryview]) -> None:
    """Write a file in whole blocks of 2 MiB, which the page cache can then keep in huge pages."""
    at = 0
    with path.open("wb", buffering=HUGE_PAGE) as file:
        for part in parts:
            while part.nbytes:
                piece = part[: HUGE_PAGE - at % HUGE_PAGE]
                file.write(piece)
                at += piece.nbytes
                part = part[piece.nbytes :]
