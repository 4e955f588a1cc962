"""One checkpoint, whatever file it came from: config, tensors and the tokenizer's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any

from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sentences import SentenceModel
from lanewise.loading.base.vision import VisionFacts
from lanewise.told import told


class ModelFileError(Exception):
    """A model file cannot be used; the message names the file, the field and its value."""

    def __init__(self, message: str) -> None:
        super().__init__(told(message))  # values may have any length and any characters


class Role(IntEnum):
    """What a tensor is in the model; the numbers equal C's ``lw_role``."""

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
    # Optional vectors: the value that is input j of the matrices that follow.
    ATTN_INPUT_ORDER = 17
    ATTN_OUTPUT_ORDER = 18
    FFN_INPUT_ORDER = 19
    ATTN_OUTPUT_BIAS = 20
    ATTN_SINKS = 21
    FFN_GATE_BIAS = 22
    FFN_UP_BIAS = 23
    FFN_DOWN_BIAS = 24
    ROUTER = 25
    ROUTER_BIAS = 26
    ROUTER_CHOICE_BIAS = 27
    # Matrices of all experts one below the other.
    EXPERTS_GATE = 28
    EXPERTS_UP = 29
    EXPERTS_DOWN = 30
    EXPERTS_GATE_BIAS = 31
    EXPERTS_UP_BIAS = 32
    EXPERTS_DOWN_BIAS = 33
    SHARED_GATE = 34
    SHARED_UP = 35
    SHARED_DOWN = 36
    SHARED_ROUTER = 37
    ATTN_NORM_BIAS = 38
    FFN_NORM_BIAS = 39
    OUTPUT_NORM_BIAS = 40
    POSITION_EMBEDDING = 41
    TOKEN_TYPE_EMBEDDING = 42
    # Here the layer number is the number of the dense head.
    DENSE = 43
    DENSE_BIAS = 44
    DENSE_NORM = 45
    DENSE_NORM_BIAS = 46
    # Of layers again.
    ATTN_RESULT_NORM = 47
    FFN_RESULT_NORM = 48
    ATTN_GATE = 49  # multiplies the results of attention
    # Of layers with a recurrent state.
    STATE_IN = 50
    STATE_GATE = 51
    STATE_DECAY = 52
    STATE_BETA = 53
    STATE_CONV = 54
    STATE_CONV_BIAS = 55
    STATE_DECAY_BIAS = 56
    STATE_RATE = 57
    STATE_SKIP = 58
    STATE_NORM = 59
    STATE_OUT = 60
    OUTPUT_BIAS = 61  # of logits
    # Of models with a per_layer_size, P.
    PER_LAYER_EMBEDDING = 62  # (vocab_size, n_layers * P)
    PER_LAYER_PROJECTION = 63  # (n_layers * P, hidden_size)
    PER_LAYER_NORM = 64  # (P,)
    PER_LAYER_GATE = 65  # (P, hidden_size), in every layer
    PER_LAYER_OUT = 66  # (hidden_size, P), in every layer
    PER_LAYER_RESULT_NORM = 67  # (hidden_size,), in every layer
    # Of latent attention; the matrices of all heads are stacked by rows.
    LATENT_QUERY = 68  # (query_rank, hidden_size)
    LATENT_QUERY_NORM = 69  # (query_rank,)
    LATENT_DOWN = 70  # (latent_rank + rope_dim, hidden_size)
    LATENT_NORM = 71  # (latent_rank,)
    LATENT_KEYS = 72  # (n_heads * latent_rank, head_dim - rope_dim)
    LATENT_VALUES = 73  # (n_heads * value_dim, latent_rank)
    # Of experts with own_norms; each (hidden_size,) but the last.
    ROUTER_NORM = 74
    EXPERTS_NORM = 75
    SHARED_RESULT_NORM = 76
    EXPERTS_RESULT_NORM = 77
    ROUTER_SCALES = 78  # (n,)
    # Of a layer that predicts further tokens.
    MTP_EMBEDDING_NORM = 79
    MTP_HIDDEN_NORM = 80
    MTP_PROJECTION = 81  # (hidden_size, 2 * hidden_size), of the embedding first
    MTP_NORM = 82
    # Of a tower.
    PATCHES = 83  # (hidden_size, Patches.inputs)
    PATCHES_BIAS = 84
    PATCHES_NORM = 85
    # The layer number is that of the dense head.
    DENSE_INPUT_NORM = 86
    DENSE_INPUT_NORM_BIAS = 87
    MEAN_SHIFT = 88
    MEAN_SCALE = 89
    CLAMPS = 90  # (28,), in every layer
    PATCHES_INPUT_NORM = 91  # (3 * side**2,)
    PATCHES_INPUT_NORM_BIAS = 92
    PATCHES_NORM_BIAS = 93
    # Of experts with a latent_size.
    EXPERTS_IN = 94  # (latent_size, hidden_size)
    EXPERTS_OUT = 95  # (hidden_size, latent_size)
    # Of attention with index_heads.
    INDEX_QUERY = 96  # (index_heads * index_dim, query_rank, or hidden_size with an index_block)
    INDEX_KEY = 97  # (index_dim, hidden_size)
    INDEX_KEY_NORM = 98  # (index_dim,)
    INDEX_KEY_NORM_BIAS = 99
    INDEX_WEIGHTS = 100  # (index_heads, hidden_size)
    ATTN_DISTANCES = 101  # (n_heads * (2 * Attention.distances + 1),), in every layer
    ATTN_POSITION_KEYS = (
        102  # (n_heads * head_dim * (2 * Attention.distances + 1),), in every layer
    )
    ATTN_POSITION_QUERIES = 103
    # Of models with several streams, N. In every layer:
    STREAM_NORM = 104
    STREAM_ROUTER = 105  # (N * hidden_size,)
    STREAM_PREDICTION = 106  # (N * N * N,)
    STREAM_CORRECTION = 107  # (N * N,)
    STREAM_SCALE = 108
    LAUREL_DOWN = 109  # (laurel_rank, hidden_size)
    LAUREL_UP = 110  # (hidden_size, laurel_rank)
    LAUREL_NORM = 111
    STREAMS_IN = 112  # ((N - 1) * hidden_size, hidden_size), once per model
    STREAMS_OUT = 113  # the same
    # A prediction head with taps, once per layer.
    HEAD_FUSION = 114  # (hidden_size, taps * hidden_size)
    HEAD_FUSION_NORM = 115
    HEAD_OUTPUT = 116  # (outputs, hidden_size)
    HEAD_TOKENS = 117  # (1, outputs)
    HEAD_EMBEDDING = 118  # (vocab_size, hidden_size)
    HEAD_RETURN = 119  # (hidden_size, size), of a head that reads the model's keys
    # Of layers with an inner_norm.
    ATTN_INNER_NORM = 120  # (n_heads * head_dim,)
    FFN_INNER_NORM = 121  # (size,)
    INDEX_QUERY_NORM = 122  # (index_dim,), of layers with an index_block
    # Of layers with a state whose channels decay apart; their STATE_IN is that of queries.
    STATE_DECAY_DOWN = 123  # (decay_rank, hidden_size)
    STATE_GATE_DOWN = 124  # (gate_rank, hidden_size)
    STATE_KEYS = 125  # (n_key_heads * key_dim, hidden_size)
    STATE_VALUES = 126  # (n_heads * value_dim, hidden_size)
    # Of attention to shared rows that makes entries of M tokens; twice the rows with ``overlap``.
    COMPRESS_ROWS = 127  # (head_dim, hidden_size)
    COMPRESS_GATE = 128  # (head_dim, hidden_size)
    COMPRESS_POSITIONS = 129  # (M * head_dim,)
    COMPRESS_NORM = 130  # (head_dim,)
    INDEX_ROWS = 131  # (index_dim, hidden_size)
    INDEX_GATE = 132  # (index_dim, hidden_size)
    INDEX_POSITIONS = 133  # (M * index_dim,)
    INDEX_NORM = 134  # (index_dim,)
    ATTN_GROUPS = 135  # (output_groups * output_rank, n_heads * head_dim / output_groups)
    # Of models with hyper_streams, N. In every layer:
    HYPER_ATTN = 136  # (N * (N + 2), N * hidden_size)
    HYPER_ATTN_BASE = 137  # (N * (N + 2),)
    HYPER_ATTN_SCALE = 138  # (3,)
    HYPER_FFN = 139
    HYPER_FFN_BASE = 140
    HYPER_FFN_SCALE = 141
    ROUTER_TABLE = 142  # (vocab_size * n_used,), of experts that are looked up
    # Once per model:
    HYPER_HEAD = 143  # (N, N * hidden_size)
    HYPER_HEAD_BASE = 144  # (N,)
    HYPER_HEAD_SCALE = 145  # (1,)


@dataclass(frozen=True)
class Packing:
    """How the bytes of a packed tensor are laid out: quantizer/FORMAT.md, "Packed files"."""

    layout: str  # of a matrix
    checksum: int
    numerics: int  # version of the numeric contract it was packed for


class LastConverted:
    """Holds the bytes of the last :class:`Converted`; a checkpoint's tensors share it."""

    def __init__(self) -> None:
        self.owner: Converted | None = None
        self.data = memoryview(b"")


class Converted:
    """The bytes of a tensor that is computed from others when it is asked for.

    Only the last result is kept, so a checkpoint needs memory for one such tensor.
    """

    def __init__(self, nbytes: int, make: Callable[[], memoryview], last: LastConverted) -> None:
        self.nbytes = nbytes
        self._make = make
        self._last = last

    def view(self) -> memoryview:
        """Return the bytes; they stay valid while a view of them exists."""
        if self._last.owner is not self:
            self._last.owner, self._last.data = None, memoryview(b"")
            self._last.data = self._make()
            self._last.owner = self
        return self._last.data

    def release(self) -> None:
        """Do nothing: the next converted tensor replaces this one."""


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
    table: bytes | None = None  # 16 int8 values, for codebook and trellis types

    @property
    def data(self) -> memoryview:
        """The bytes; computed now if they are not in the file."""
        return self.stored if isinstance(self.stored, memoryview) else self.stored.view()

    @property
    def n_bytes(self) -> int:
        """Number of bytes of ``data``, without computing them."""
        return self.stored.nbytes

    def release(self) -> None:
        """Give the file's pages back to the system; reading the data again maps them again."""
        self._release()


@dataclass(frozen=True)
class TokenizerFiles:
    """The inputs of the tokenizer: GGUF metadata, or a directory's small files."""

    path: Path
    vocab_size: int
    gguf: Mapping[str, Any] | None = None
    # Hugging Face: JSON files parsed, by name; tokenizer.json and templates as text.
    json_files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AttachedHead:
    """A head of others that guesses for a model: what came with it, and is no part of answers."""

    path: Path
    n_ropes: int  # of the model without it


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
        files: tuple[Path, ...] = (),
    ) -> None:
        self.path = path
        self.files = files or (path,)  # files read; a directory stands for its contents
        self.name = name
        self.config = config
        self.tensors = tensors
        self.tokenizer = tokenizer
        self.weights_name = most_common_type(tensors)
        self.is_on_huge_pages = is_on_huge_pages  # asked of packed weights only
        # True if its float32 matrices were 4- or 8-bit codes: they are held as Q8_0 by default.
        self.is_widened = False
        self.sentences: SentenceModel | None = None  # of sentence-transformers
        # What makes rows of pictures for this language model, and what is known about pictures.
        self.tower: Checkpoint | None = None
        self.vision: VisionFacts | None = None
        self.head: AttachedHead | None = None
        # Of a GGUF file: matrices that lie there as they are, each in which of the file's tensors
        # and from which weight on. That tensor holds nothing but matrices.
        self.places: Mapping[tuple[Role, int], tuple[str, int]] = {}
        self._close = close

    @property
    def n_weights(self) -> int:
        """The weights of all tensors."""
        return sum(tensor.rows * tensor.cols for tensor in self.tensors)

    def limit_context(self, longest: int | None) -> None:
        """Limit the length of texts, before the model is loaded; None: the model's own limit."""
        if longest is not None:
            self.config = self.config.for_context(longest)

    def also_close(self, *more: Callable[[], None]) -> None:
        """Close further resources together with the checkpoint."""
        first = self._close

        def close() -> None:
            first()
            for one in more:
                one()

        self._close = close

    def close(self) -> None:
        """Unmap the files; memory with open views is unmapped with its last view."""
        for tensor in self.tensors:
            with suppress(BufferError):  # a view is still open
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
    """Return the name of the type of most matrices, such as ``q4_0``."""
    counts = Counter(tensor.type for tensor in tensors if tensor.rows > 1)
    return counts.most_common(1)[0][0].name.lower() if counts else "none"
