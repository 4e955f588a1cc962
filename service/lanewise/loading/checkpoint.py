"""One checkpoint, whatever file it came from: config, tensors and what the tokenizer needs."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any


class ModelFileError(Exception):
    """A model file cannot be used; the message names the file, the field and its value."""


class TensorType(IntEnum):
    """Storage types: GGUF's by its tensor type ids, ours from 256; those of ``lw_type``."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31
    Q4_0_4_8 = 32
    Q4_0_8_8 = 33
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36
    IQ4_NL_4_8 = 37
    IQ4_NL_8_8 = 38
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    CB2 = 258
    CB3 = 259
    CB4 = 260
    T2 = 262
    Q4_G64 = 264
    Q4_G128 = 265
    A4_G32 = 272
    A4_G64 = 273
    A4_G128 = 274
    A8_G32 = 276
    A8_G128 = 278
    FP6 = 280
    W8A8 = 284


@dataclass(frozen=True)
class Block:
    """The unit a storage type is made of: so many weights in so many bytes."""

    weights: int
    n_bytes: int


BLOCKS: Mapping[TensorType, Block] = {
    TensorType.F32: Block(1, 4),
    TensorType.F16: Block(1, 2),
    TensorType.BF16: Block(1, 2),
    TensorType.Q4_0: Block(32, 18),
    TensorType.Q8_0: Block(32, 34),
    TensorType.Q6_K: Block(256, 210),
    TensorType.Q4_1: Block(32, 20),
    TensorType.Q5_0: Block(32, 22),
    TensorType.Q5_1: Block(32, 24),
    TensorType.Q2_K: Block(256, 84),
    TensorType.Q3_K: Block(256, 110),
    TensorType.Q4_K: Block(256, 144),
    TensorType.Q5_K: Block(256, 176),
    TensorType.IQ4_NL: Block(32, 18),
    TensorType.IQ4_XS: Block(256, 136),
    TensorType.MXFP4: Block(32, 17),
}


@dataclass(frozen=True)
class StoredRow:
    """What a row of one of our own types is made of: quantizer/FORMAT.md, "Stored rows"."""

    bits: int
    group: int  # inputs that share a scale, and a zero point if there is one
    scale_bytes: int = 2
    has_zeros: bool = False
    has_selectors: bool = False
    has_row_scale: bool = False
    has_table: bool = False  # 16 int8 that come with the tensor


STORED_ROW_INPUTS = 32  # a row is a multiple of so many
TABLE_BYTES = 16
_CODEBOOK: dict[str, Any] = {
    "group": 32,
    "scale_bytes": 1,
    "has_row_scale": True,
    "has_table": True,
}
STORED_ROWS: Mapping[TensorType, StoredRow] = {
    TensorType.CB2: StoredRow(2, has_selectors=True, **_CODEBOOK),
    TensorType.CB3: StoredRow(3, has_selectors=True, **_CODEBOOK),
    TensorType.CB4: StoredRow(4, **_CODEBOOK),
    TensorType.T2: StoredRow(2, **_CODEBOOK),
    TensorType.Q4_G64: StoredRow(4, 64),
    TensorType.Q4_G128: StoredRow(4, 128),
    TensorType.A4_G32: StoredRow(4, 32, has_zeros=True),
    TensorType.A4_G64: StoredRow(4, 64, has_zeros=True),
    TensorType.A4_G128: StoredRow(4, 128, has_zeros=True),
    TensorType.A8_G32: StoredRow(8, 32, has_zeros=True),
    TensorType.A8_G128: StoredRow(8, 128, has_zeros=True),
    TensorType.FP6: StoredRow(6, 128, scale_bytes=0, has_row_scale=True),
    TensorType.W8A8: StoredRow(8, 128, scale_bytes=0, has_row_scale=True),
}
MATRIX_TYPES = (*BLOCKS, *STORED_ROWS)
VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)


def row_bytes(kind: TensorType, cols: int) -> int:
    """Bytes of a row of ``cols`` weights; 0 if the type cannot hold such a row."""
    block, row = BLOCKS.get(kind), STORED_ROWS.get(kind)
    if block is not None:
        return 0 if cols % block.weights else cols // block.weights * block.n_bytes
    if row is None or cols % STORED_ROW_INPUTS:
        return 0
    groups = -(-cols // row.group)
    selectors = -(-cols // 128) if row.has_selectors else 0
    parts = groups * (row.scale_bytes + row.has_zeros) + selectors + 4 * row.has_row_scale
    return cols * row.bits // 8 + parts


def has_table(kind: TensorType) -> bool:
    """Return whether tensors of a type come with a table of their own."""
    row = STORED_ROWS.get(kind)
    return row is not None and row.has_table


class Role(IntEnum):
    """What a tensor is in the model; the numbers are those of ``lw_role``."""

    TOKEN_EMBEDDING = 0
    OUTPUT = 1
    OUTPUT_NORM = 2
    ATTN_NORM = 3
    ATTN_Q = 4
    ATTN_K = 5
    ATTN_V = 6
    ATTN_Q_BIAS = 7
    ATTN_K_BIAS = 8
    ATTN_V_BIAS = 9
    ATTN_Q_NORM = 10
    ATTN_K_NORM = 11
    ATTN_OUTPUT = 12
    FFN_NORM = 13
    FFN_GATE = 14
    FFN_UP = 15
    FFN_DOWN = 16
    # Vectors that some models have: which value is input j of the matrices after them.
    ATTN_INPUT_ORDER = 17
    ATTN_OUTPUT_ORDER = 18
    FFN_INPUT_ORDER = 19


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model and the constants of its forward step."""

    architecture: str
    n_layers: int
    hidden_size: int
    ffn_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_factors: tuple[float, ...] | None
    sliding_window: int | None
    tied_embeddings: bool
    qkv_bias: bool
    qk_norm: bool


@dataclass(frozen=True)
class Packing:
    """How the bytes of a packed file's tensor lie: quantizer/FORMAT.md, "Packed files"."""

    layout: str  # of a matrix
    checksum: int
    numerics: int  # version of the numeric contract it was packed for


class LastConverted:
    """Room for the bytes of one :class:`Converted`, which all of a checkpoint share."""

    def __init__(self) -> None:
        self.owner: Converted | None = None
        self.data = memoryview(b"")


class Converted:
    """The bytes of a tensor that are made of others, when they are asked for.

    Those made last are kept until others are made, so that a checkpoint takes the memory of one.
    """

    def __init__(self, nbytes: int, make: Callable[[], memoryview], last: LastConverted) -> None:
        self.nbytes = nbytes
        self._make = make
        self._last = last

    def view(self) -> memoryview:
        """Return the bytes; they stay as they are while somebody holds them."""
        if self._last.owner is not self:
            self._last.owner, self._last.data = None, memoryview(b"")
            self._last.data = self._make()
            self._last.owner = self
        return self._last.data

    def release(self) -> None:
        """Nothing: the next tensor takes the place of this one."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of a mapped file: ``rows`` outputs of ``cols`` inputs, or one row for a vector.

    ``stored`` holds the rows in the storage type's own bytes, or panels if ``packing`` is given.
    """

    name: str
    role: Role
    layer: int
    type: TensorType
    rows: int
    cols: int
    stored: memoryview | Converted
    rope_heads: int
    _release: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)
    packing: Packing | None = None
    table: bytes | None = None  # 16 int8, of codebooks and trellises

    @property
    def data(self) -> memoryview:
        """The bytes, which are made now if they are no part of the file."""
        return self.stored if isinstance(self.stored, memoryview) else self.stored.view()

    @property
    def n_bytes(self) -> int:
        """How many bytes ``data`` has, without making them."""
        return self.stored.nbytes

    def release(self) -> None:
        """Give the file's pages back to the system; reading the data again maps them anew."""
        self._release()


@dataclass(frozen=True)
class TokenizerFiles:
    """What the tokenizer is made from: GGUF metadata, or a directory's small files."""

    path: Path
    vocab_size: int
    gguf: Mapping[str, Any] | None = None
    # Hugging Face: file name to parsed JSON object, or to text for tokenizer.json and templates.
    json_files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text_files: Mapping[str, str] = field(default_factory=dict)


class Checkpoint:
    """A model file or directory, mapped into memory; use it as a context manager."""

    def __init__(
        self,
        path: Path,
        name: str,
        config: ModelConfig,
        tensors: list[Tensor],
        tokenizer: TokenizerFiles,
        close: Callable[[], None],
        is_on_huge_pages: Callable[[], bool] = lambda: False,
    ) -> None:
        self.path = path
        self.name = name
        self.config = config
        self.tensors = tensors
        self.tokenizer = tokenizer
        self.weights_name = most_common_type(tensors)
        self.is_on_huge_pages = is_on_huge_pages  # of packed weights: how well they are mapped
        self._close = close

    def close(self) -> None:
        """Unmap the files; memory still viewed elsewhere goes when its last view does."""
        for tensor in self.tensors:
            with suppress(BufferError):  # somebody still reads it
                tensor.stored.release()
        self._close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def most_common_type(tensors: list[Tensor]) -> str:
    """Return the name of the type that most matrices have, such as ``q4_0``."""
    counts = Counter(tensor.type for tensor in tensors if tensor.rows > 1)
    return counts.most_common(1)[0][0].name.lower() if counts else "none"


def round_to_f32(value: float) -> float:
    """Round to the nearest float32, as GGUF stores numbers, so that both kinds of file agree."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory.

    Raises ModelFileError for anything that cannot be served.
    """
    # Imported here because both readers build the classes above.
    from lanewise.loading.gguf_checkpoint import open_gguf
    from lanewise.loading.hf_checkpoint import open_directory

    path = Path(path)
    try:
        is_directory = path.is_dir()
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    if not exists:
        raise ModelFileError(
            f"{path}: no such file or directory; give a GGUF file, a Hugging Face directory,"
            " or a hub id"
        )
    return open_directory(path) if is_directory else open_gguf(path)
