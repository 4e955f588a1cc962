"""What `lanewise quantize` starts from: any model that can be served, its tensors as rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Checkpoint, Converted, LastConverted, Tensor
from lanewise.loading.base.formats import HELD, TensorType, row_bytes
from lanewise.loading.base.names import is_vector
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime.model import check_numerics
from lanewise.runtime.unpacking import file_weights, packed_rows
from lanewise_quantizer.coded import CodedMatrix, coded_type
from lanewise_quantizer.commands.plan import Target, own_type
from lanewise_quantizer.commands.tables import Fitting, is_copied
from lanewise_quantizer.fit.source import slab_rows
from lanewise_quantizer.gguf_blocks import LAYOUTS, encode_blocks
from lanewise_quantizer.storage import FLOAT_BYTES

Bytes = npt.NDArray[np.uint8]

PACKED_AS_BLOCKS = ("q4_0", "q8_0", "q6_k")  # types whose panels come back as blocks
FEW_BITS = 7.5  # per weight: quantizing so few again loses what can be seen


def open_source(path: Path) -> Checkpoint:
    """Open a model; matrices of packed directories are rows, made when they are asked for.

    ModelFileError for anything that cannot be served.
    """
    checkpoint = open_checkpoint(path, tower=False)
    try:
        check_numerics(checkpoint)
        last = LastConverted()
        checkpoint.tensors[:] = [_unpacked(tensor, last) for tensor in checkpoint.tensors]
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def _unpacked(tensor: Tensor, last: LastConverted) -> Tensor:
    if tensor.type in HELD:
        return _as_floats(tensor, last)
    if tensor.packing is None or is_vector(tensor.role):
        return replace(tensor, packing=None)

    def make() -> memoryview:
        rows = rows_of_packed(tensor)
        tensor.release()
        return memoryview(rows.reshape(-1).data)

    size = tensor.rows * row_bytes(tensor.type, tensor.cols)
    stored = Converted(size, make, last)
    return replace(tensor, stored=stored, packing=None, _release=stored.release)


def _as_floats(tensor: Tensor, last: LastConverted) -> Tensor:
    """A matrix of a type that only files have, as float32."""

    def make() -> memoryview:
        weights = file_weights(tensor)
        tensor.release()
        return weights.view(np.uint8).reshape(-1).data

    stored = Converted(4 * tensor.rows * tensor.cols, make, last)
    return replace(tensor, type=TensorType.F32, stored=stored, _release=stored.release)


def rows_of_packed(tensor: Tensor) -> Bytes:
    """Return the rows [rows, bytes] of a packed matrix as its type stores them in files."""
    name, size = own_type(tensor), row_bytes(tensor.type, tensor.cols)
    if name in FLOAT_BYTES or name in PACKED_AS_BLOCKS:
        return packed_rows(tensor, size)
    kind = coded_type(name)
    stored = packed_rows(tensor, kind.row_bytes(tensor.cols))
    if name not in LAYOUTS:
        return stored
    blocks = np.empty((tensor.rows, size), np.uint8)
    step = slab_rows(tensor.cols)
    for start in range(0, tensor.rows, step):
        part = CodedMatrix.from_rows(kind, stored[start : start + step], tensor.cols)
        blocks[start : start + step] = encode_blocks(part)
    return blocks


def quantized_twice(targets: Iterable[Target], fitting: Fitting) -> str | None:
    """Return a warning if matrices of few bits are to be quantized again, or None."""
    again = [t.source for t in targets if t.is_matrix and not is_copied(t, fitting)]
    again = [s for s in again if s.n_bytes * 8 < FEW_BITS * s.rows * s.cols]
    if not again:
        return None
    bits = 8 * sum(s.n_bytes for s in again) / sum(s.rows * s.cols for s in again)
    names = ", ".join(name for name, _ in Counter(map(own_type, again)).most_common())
    return (
        f"its weights are quantized already, to {bits:.2f} bits ({names}): what that lost is lost"
        " twice now; the model before it was quantized gives better ones"
    )
