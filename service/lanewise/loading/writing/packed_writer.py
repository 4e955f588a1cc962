"""Writes the directories of `lanewise pack`, and shared parts of those of `lanewise quantize`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Tensor
from lanewise.loading.base.mapped_file import HUGE_PAGE
from lanewise.loading.base.names import is_vector
from lanewise.loading.checkpoints.packed_checkpoint import (
    ALIGNMENT,
    FORMAT_VERSION,
    METHOD,
    TOWER_WEIGHTS,
    WEIGHTS,
    TensorNote,
)
from lanewise.loading.pooling.sentence_transformers import files_of
from lanewise.loading.programs.stored_program import program_as_json
from lanewise.loading.towers.stored import tower_as_json
from lanewise.loading.vocabulary.gguf_text import TEXT_KEYS
from lanewise.loading.vocabulary.tokenizer_files import GGUF_TOKENIZER, JSON_FILES


def check_folder(folder: Path) -> None:
    """Raise ModelFileError unless ``folder`` is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelFileError(f"{folder}: exists and is not an empty directory; give a new one")


def write_packed(
    folder: Path,
    checkpoint: Checkpoint,
    tensors: Sequence[Tensor],
    level: str,
    tower: Sequence[Tensor] = (),
) -> int:
    """Write packed ``tensors`` and the small files of ``checkpoint``; returns the weights' bytes.

    ``tower`` has those of its tower, if it has one. The folder must be new or empty; after an
    error it is emptied again.
    """
    check_folder(folder)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        size = write_weights(folder / WEIGHTS, tensors, level)
        if tower:
            size += write_weights(folder / TOWER_WEIGHTS, tower, level)
        write_tokenizer(folder, checkpoint)
        # last: it makes the model complete
        config = packed_config(checkpoint, **tower_as_json(checkpoint))
        write_json(folder / "config.json", config)
    except BaseException:
        for path in folder.iterdir():
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise
    return size


@contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Make OSErrors name the file, which errors of writes, such as a full disk, do not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from None


def packed_config(checkpoint: Checkpoint, **notes: Any) -> dict[str, Any]:
    """Return the source's config.json, if it had one, with the program added."""
    config = checkpoint.config
    source = checkpoint.tokenizer.json_files.get("config.json", {})
    own = {"model_type": config.architecture} | dict(source)
    about = {
        "quant_method": METHOD,
        "version": FORMAT_VERSION,
        "model": program_as_json(config),
    }
    return own | {"quantization_config": about | notes}


def write_tokenizer(folder: Path, checkpoint: Checkpoint) -> None:
    """Copy the small files of a directory, or write GGUF's tokenizer metadata as JSON.

    JSON holds all values exactly, and is read ten times as fast as GGUF.
    """
    if checkpoint.sentences is not None:
        for name, content in files_of(checkpoint.sentences).items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_json(folder / name, content)
    files = checkpoint.tokenizer
    if files.gguf is not None:
        kept = {key: value for key, value in files.gguf.items() if key.startswith(TEXT_KEYS)}
        write_json(folder / GGUF_TOKENIZER, kept)
        return
    for name in JSON_FILES:
        if name in files.json_files and name != "config.json":
            write_json(folder / name, files.json_files[name])
    for name, text in files.text_files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        with errors_named(folder / name):
            (folder / name).write_text(text, encoding="utf-8", newline="")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file with exactly ``value``."""
    # Escapes would take twice as long to read; only lone surrogates need them.
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = json.dumps(value).encode()
    with errors_named(path):
        path.write_bytes(text)


def write_weights(path: Path, tensors: Iterable[Tensor], level: str) -> int:
    """Write a safetensors file with matrices at multiples of 64 bytes; returns its size."""
    # Matrices take whole multiples of 64 bytes; vectors, which loading copies, come last.
    ordered = sorted(tensors, key=lambda tensor: is_vector(tensor.role))
    metadata = {"level": level}
    entries = []
    for tensor in ordered:
        packing, size = tensor.packing, tensor.n_bytes
        assert packing is not None
        dtype, shape = ("F32", (tensor.cols,)) if is_vector(tensor.role) else ("U8", (size,))
        if dtype == "U8":
            metadata |= {"layout": packing.layout, "numerics": str(packing.numerics)}
        note = TensorNote(tensor.type, tensor.rows, tensor.cols, packing.checksum, tensor.table)
        entries.append(Entry(tensor.name, dtype, shape, size, note))
    start = memoryview(header_of(entries, metadata))
    write_blocks(path, [start, *(tensor.data for tensor in ordered)])
    return len(start) + sum(entry.n_bytes for entry in entries)


@dataclass(frozen=True)
class Entry:
    """A tensor to be written: a vector as F32, or the bytes of a matrix."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    note: TensorNote


def header_of(entries: Sequence[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return a header of a multiple of 64 bytes, for tensors that follow without gaps."""
    notes = {"format": METHOD, "version": str(FORMAT_VERSION), **metadata}
    notes |= {entry.name: entry.note.text() for entry in entries}
    header: dict[str, Any] = {"__metadata__": notes}
    offset = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.n_bytes],
        }
        offset += entry.n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_blocks(path: Path, parts: Iterable[memoryview]) -> None:
    """Write a file in blocks of 2 MiB, which the page cache can keep on huge pages."""
    at = 0
    with errors_named(path), path.open("wb", buffering=HUGE_PAGE) as file:
        for part in parts:
            while part.nbytes:
                piece = part[: HUGE_PAGE - at % HUGE_PAGE]
                file.write(piece)
                at += piece.nbytes
                part = part[piece.nbytes :]
