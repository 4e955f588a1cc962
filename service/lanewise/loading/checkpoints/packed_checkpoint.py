"""Opens the directories that `lanewise pack` and `lanewise quantize` write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Packing
from lanewise.loading.base.formats import TABLE_BYTES, TensorType, has_table, row_bytes
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import HF
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.checkpoints.mtp import without_mtp
from lanewise.loading.families.table import FAMILIES
from lanewise.loading.files.safetensors import SafetensorsFile, SafetensorsTensor
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.stored_program import AGAIN, read_first_version, read_program
from lanewise.loading.towers.stored import NAME as TOWER
from lanewise.loading.towers.stored import add_stored_tower
from lanewise.loading.vocabulary.tokenizer_files import model_name, read_tokenizer_files

METHOD = "lanewise"
FORMAT_VERSION = 2
FIRST_VERSION = 1  # can still be read
WEIGHTS = "model.safetensors"
TOWER_WEIGHTS = "tower.safetensors"  # of a model that sees
ALIGNMENT = 64
ROWS = "rows"  # layout of quantized files: rows in their storage type


def is_packed(config: Fields) -> bool:
    """Return whether a config.json is of a packed or quantized directory."""
    found = config.values.get("quantization_config")
    return isinstance(found, Mapping) and found.get("quant_method") == METHOD


def open_packed(
    path: Path, config: Fields, mtp: bool | None = False, tower: bool = True
) -> Checkpoint:
    """Open a packed or quantized directory; without ``mtp`` the prediction head is left out.

    Without ``tower`` a tower is left out. With None the head is read if it is there. ModelFileError
    for anything that cannot be served.
    """
    packed = Fields(config.values["quantization_config"], f"{config.source}: quantization_config")
    if packed.integer("version") not in (FIRST_VERSION, FORMAT_VERSION):
        raise packed.fail("version", f"{FORMAT_VERSION} ({AGAIN})")
    file = SafetensorsFile(path / WEIGHTS)
    try:
        model_config = read_config(packed, len(file.tensors))
        tokenizer = read_tokenizer_files(path, model_config.vocab_size)
        sources = sources_of(file)
        if mtp and not model_config.has_mtp:
            raise ModelFileError(
                f"{path}: mtp asks for a multi-token prediction head, which this directory does not"
                " have; accepted: a directory that `lanewise pack` made from a model with one"
            )
        if model_config.has_mtp and mtp is False:
            model_config, sources = without_mtp(model_config, sources)
        tensors = bind_tensors(model_config, sources, HF, False, str(path))
    except BaseException:
        file.close()
        raise
    name, is_on_huge_pages = model_name(path), file.file.is_on_huge_pages
    opened = Checkpoint(path, name, model_config, tensors, tokenizer, file.close, is_on_huge_pages)
    if tower and packed.is_set(TOWER):
        try:
            add_tower(opened, packed)
        except BaseException:
            opened.close()
            raise
    return opened


def add_tower(opened: Checkpoint, packed: Fields) -> None:
    """Give a checkpoint the tower that lies beside its weights."""
    file = SafetensorsFile(opened.path / TOWER_WEIGHTS)
    try:
        add_stored_tower(opened, packed, sources_of(file), file.close)
        assert opened.tower is not None
        opened.tower.is_on_huge_pages = file.file.is_on_huge_pages
    except BaseException:
        file.close()
        raise


def sources_of(file: SafetensorsFile) -> Sources:
    """Return the tensors of a weights file by name."""
    numerics = read_numerics(file)
    return {name: source_tensor(file, tensor, numerics) for name, tensor in file.tensors.items()}


def read_numerics(file: SafetensorsFile) -> int | None:
    """Return the numeric contract's version of packed tensors; None for plain rows."""
    metadata = Fields(file.metadata, f"{file.path}: __metadata__")
    if metadata.text("format") != METHOD:
        raise metadata.fail("format", repr(METHOD))
    if metadata.text("version") not in (str(FIRST_VERSION), str(FORMAT_VERSION)):
        raise metadata.fail("version", f"'{FORMAT_VERSION}' ({AGAIN})")
    if metadata.text("layout") == ROWS:
        return None
    numerics = metadata.text("numerics")
    if not (numerics.isdecimal() and len(numerics) < 10):
        raise metadata.fail("numerics", "a number")
    return int(numerics)


def source_tensor(
    file: SafetensorsFile, tensor: SafetensorsTensor, numerics: int | None
) -> SourceTensor:
    """Return a tensor with its description from the metadata."""
    about = TensorNote.read(file, tensor.name)
    is_matrix = tensor.dtype == "U8"
    packing = None
    if numerics is not None:
        if is_matrix and tensor.start % ALIGNMENT:
            raise ModelFileError(
                f"{file.path}: tensor {tensor.name!r} begins at byte {tensor.start}; a multiple of"
                f" {ALIGNMENT} is needed"
            )
        layout = str(file.metadata["layout"]) if is_matrix else ""
        packing = Packing(layout, about.checksum, numerics)
    elif is_matrix and tensor.shape != (about.rows, row_bytes(about.type, about.cols)):
        needed = [about.rows, row_bytes(about.type, about.cols)]
        raise ModelFileError(
            f"{file.path}: tensor {tensor.name!r} has shape {list(tensor.shape)}; rows of"
            f" {about.cols} inputs as {about.type.name} are {needed}"
        )
    return SourceTensor(
        where=str(file.path),
        shape=(about.rows, about.cols) if is_matrix else tensor.shape,
        type=about.type,
        data=file.file.view[tensor.start : tensor.start + tensor.n_bytes],
        release=file.file.releaser(tensor.start, tensor.n_bytes),
        packing=packing,
        table=about.table,
    )


@dataclass(frozen=True)
class TensorNote:
    """The metadata's description of one tensor."""

    type: TensorType
    rows: int
    cols: int
    checksum: int
    table: bytes | None = None  # 16 int8 values, for types that have a table

    def text(self) -> str:
        """Return the metadata value that describes the tensor."""
        shape = f"{self.type.name.lower()} {self.rows} {self.cols} {self.checksum:016x}"
        return shape if self.table is None else f"{shape} {self.table.hex()}"

    @staticmethod
    def read(file: SafetensorsFile, name: str) -> TensorNote:
        """Return the description of a tensor; ModelFileError if :meth:`text` did not write it."""
        metadata = Fields(file.metadata, f"{file.path}: __metadata__")
        words = metadata.text(name).split(" ")
        try:
            kind, rows, cols = TensorType[words[0].upper()], int(words[1]), int(words[2])
            note = TensorNote(kind, rows, cols, int(words[3], 16), _table(kind, words[4:]))
        except (KeyError, ValueError, IndexError):
            note = None
        if note is None or not (
            0 < rows < 2**31 and 0 < cols < 2**31 and 0 <= note.checksum < 2**64
        ):
            example = "'q4_0 2048 2048 0123456789abcdef'"
            after = ", and the 16 int8 of a table type in hexadecimal"
            raise metadata.fail(name, f"'type rows columns checksum', as in {example}{after},")
        return note


def _table(kind: TensorType, words: list[str]) -> bytes | None:
    """The table at the end of a description; ValueError if it does not fit the type."""
    if not has_table(kind):
        if words:
            raise ValueError(words)
        return None
    (word,) = words
    table = bytes.fromhex(word)
    if len(table) != TABLE_BYTES or 0x80 in table:
        raise ValueError(word)
    return table


def read_config(packed: Fields, most_layers: int) -> ModelConfig:
    """Return the stored model config, which is a program and not the family's config."""
    values = packed.values.get("model")
    if not isinstance(values, Mapping):
        raise packed.fail("model", "an object")
    model = Fields(values, f"{packed.source}: model")
    known = {family.name for family in FAMILIES}
    if values and model.text("architecture") not in known:
        raise model.fail("architecture", f"one of {', '.join(sorted(known))}")
    if packed.integer("version") == FIRST_VERSION:
        return read_first_version(model, most_layers)
    return read_program(model)
