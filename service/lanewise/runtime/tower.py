"""Runs a tower over pictures: what a language model reads in the place of tokens' embeddings."""

from collections.abc import Sequence
from weakref import ref

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.program import ModelConfig
from lanewise.runtime.model import Model
from lanewise.runtime.native_session import NativeSession
from lanewise.runtime.sampling import Floats

Pixels = npt.NDArray[np.uint8]  # [height][width][3]
BLOCK_PATCHES = 32  # LW_BLOCK_TOKENS
LANES = 16  # LW_LANES: values, and keys in codes, are padded to multiples
FLOAT_BYTES = 4
FLOATS = ("f32", "f16", "bf16")  # weights
UNIT_PATCHES = 64  # of each thread, in one unit of work


def rows_of(config: ModelConfig, height: int, width: int) -> int:
    """How many rows a tower makes of a picture of this size."""
    assert config.patches is not None
    side = config.patches.side * config.patches.merge
    return (height // side) * (width // side)


def kv_type_of(weights: str) -> str:
    """What queries of a tower meet: codes beside matrices of codes, else floats."""
    return "f32" if weights in FLOATS else "int8"


def bytes_for(config: ModelConfig, n_patches: int, threads: int, kv_type: str) -> int:
    """About what a tower's session takes for pictures of up to so many patches, and its job."""
    assert config.patches is not None
    widest = max(config.patches.inputs, config.hidden_size * config.patches.merge**2)
    of_patch, queries = FLOAT_BYTES * config.hidden_size, 0
    if config.n_layers > 0:
        heads = config.heads
        queries = heads.n_heads * heads.head_dim
        of_patch += FLOAT_BYTES * queries + heads.n_kv_heads * _key_bytes(heads.head_dim, kv_type)
        widest = max(widest, *(config.ffn_size(number) for number in range(config.n_layers)))
    of_unit = 6 * config.hidden_size + 4 * queries + 6 * widest
    return n_patches * of_patch + FLOAT_BYTES * UNIT_PATCHES * threads * of_unit


def _key_bytes(head_dim: int, kv_type: str) -> int:
    """Of a patch's key and value in one head."""
    padded = -(-head_dim // LANES) * LANES
    if kv_type == "int8":
        return 2 * padded + 2 * FLOAT_BYTES  # with a scale for each
    return FLOAT_BYTES * (head_dim + padded)


class Tower(NativeSession):
    """Threads and workspace for one tower; used by one thread at a time.

    It works on one picture at a time. ``row_floats`` is what a row has.
    """

    def __init__(
        self,
        model: Model,
        *,
        threads: int,
        max_patches: int | None = None,
        kv_type: str | None = None,
    ) -> None:
        """Open one for pictures of up to ``max_patches``; None: what the tower was made for.

        Queries meet keys in ``kv_type``; None: in codes beside matrices of codes, else in floats.
        """
        patches = model.config.patches
        if patches is None:
            raise ValueError(f"{model.name} reads tokens; accepted: a tower")
        super().__init__(model)
        self.row_floats = int(self._native.lib.lw_model_dims(model.handle))
        most = model.config.context_length
        self.max_patches = most if max_patches is None else min(max_patches, most)
        block = patches.merge**2
        self._unit = -(-UNIT_PATCHES * threads // block) * block
        self._job: ref[Job] | None = None
        self._open(
            threads=threads,
            kv_type=kv_type or kv_type_of(model.weights),
            n_blocks=-(-self.max_patches // BLOCK_PATCHES),
            max_batch_tokens=self._unit,
            max_batch_logits=1,
        )

    def begin(self, parts: Sequence[Pixels]) -> "Job":
        """Begin an image of one part or several, such as tiles, each of which sees only itself.

        ValueError for a part of a size that the tower does not take, and while another job is
        neither done nor dropped.
        """
        current = None if self._job is None else self._job()
        if current is not None and not current.is_over:
            raise ValueError("the tower works on another image; accepted: one at a time")
        job = Job(self, parts)
        self._job = ref(job)
        return job


class Job:
    """One image on its way through a tower. Dropped, it leaves the tower to the next one."""

    def __init__(self, tower: Tower, parts: Sequence[Pixels]) -> None:
        """See :meth:`Tower.begin`."""
        config = tower.model.config
        assert config.patches is not None
        for number, part in enumerate(parts):
            _check(part, number, config, tower.max_patches)
        self._tower = tower
        self._parts = [np.ascontiguousarray(part) for part in parts]
        counts = [rows_of(config, *part.shape[:2]) for part in parts]
        self._starts = [0, *np.cumsum(counts).tolist()]
        self._next = 0  # part to begin
        self._kept: list[object] = []  # what the library reads and writes of the part in progress
        self._done = tower._native.ffi.new("uint32_t*", 1)
        self.rows: Floats = np.empty((self._starts[-1], tower.row_floats), np.float32)
        self.is_over = not parts

    def advance(self, nanoseconds: int) -> bool:
        """Work for about so long, one unit of work at least; returns whether all rows are there.

        No bit of a row depends on how the work is divided. NativeError for results that are not
        finite, after which the job is over.
        """
        if self.is_over:
            return self._next == len(self._parts)
        tower = self._tower
        native, handle = tower._native, tower._open_handle()
        try:
            if self._done[0]:
                self._begin_part()
            native.check(native.lib.lw_see_advance(handle, max(0, nanoseconds), self._done))
        except BaseException:
            self.drop()
            raise
        if self._done[0] and self._next == len(self._parts):
            self._end()
        return self.is_over

    def _begin_part(self) -> None:
        native, handle = self._tower._native, self._tower._open_handle()
        pixels = self._parts[self._next]
        rows = self.rows[self._starts[self._next] : self._starts[self._next + 1]]
        data = native.ffi.from_buffer("uint8_t[]", pixels)
        out = native.ffi.from_buffer("float[]", rows, require_writable=True)
        picture = native.ffi.new("lw_picture*")
        picture.pixels, (picture.height, picture.width) = data, pixels.shape[:2]
        self._kept = [pixels, rows, data, out, picture]
        native.check(native.lib.lw_see_begin(handle, picture, out))
        self._next += 1

    def _end(self) -> None:
        self.is_over, self._kept = True, []

    def drop(self) -> None:
        """Give the image up; its rows are undefined."""
        if not self.is_over:
            self._end()
            self._next = -1


def _check(part: Pixels, number: int, config: ModelConfig, max_patches: int) -> None:
    assert config.patches is not None
    side = config.patches.side
    block = side * config.patches.merge
    if part.dtype != np.uint8 or part.ndim != 3 or part.shape[2] != 3:
        raise ValueError(
            f"part {number} is {part.dtype} of shape {part.shape}; accepted: uint8 of shape"
            " (height, width, 3)"
        )
    height, width = part.shape[:2]
    patches = (height // side) * (width // side)
    if not height or not width or height % block or width % block or patches > max_patches:
        raise ValueError(
            f"part {number} has {height} x {width} pixels; accepted: multiples of {block}, with at"
            f" most {max_patches} patches of {side} x {side}"
        )
    longest = config.n_positions // 2
    if config.patches.positions == "tables" and max(height, width) // side > longest:
        raise ValueError(
            f"part {number} has {height} x {width} pixels; accepted: at most {longest} patches of"
            f" {side} on a side"
        )
    square = config.n_positions
    is_square = square > 0 and config.patches.positions == "square"
    if is_square and (patches != square or height != width):
        raise ValueError(
            f"part {number} has {height} x {width} pixels; accepted: a square of {square} patches"
        )
