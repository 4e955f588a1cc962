"""Reads a checkpoint's tensors as float32, rows of Q and K in half-split order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanewise.loading.checkpoint import Checkpoint, ModelFileError, Role, Tensor, TensorType

Floats = npt.NDArray[np.float32]


class Source:
    """The weights of a checkpoint by role and layer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        self.tensors = {(tensor.role, tensor.layer): tensor for tensor in checkpoint.tensors}

    def has(self, role: Role, layer: int = 0) -> bool:
        """Return whether the model has this tensor."""
        return (role, layer) in self.tensors

    def __call__(self, role: Role, layer: int = 0) -> Floats:
        """Return a matrix [outputs, inputs] or a vector [size]; NaN and infinity are an error."""
        tensor = self.tensors[role, layer]
        values = decode(tensor)
        if not np.isfinite(values).all():
            row = int(np.nonzero(~np.isfinite(values).all(axis=1))[0][0])
            raise ModelFileError(f"tensor {tensor.name!r}: row {row} holds NaN or infinity")
        if tensor.rope_heads:
            flat = values if tensor.rows > 1 else values.T
            halves = flat.reshape(tensor.rope_heads, -1, 2, flat.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
        return values if tensor.rows > 1 else values[0]


def decode(tensor: Tensor) -> Floats:
    """The values of a tensor as stored, [rows, cols]."""
    data = np.frombuffer(tensor.data, np.uint8)
    shape = (tensor.rows, tensor.cols)
    if tensor.type == TensorType.F32:
        return data.view("<f4").astype(np.float32).reshape(shape)
    if tensor.type == TensorType.F16:
        return data.view("<f2").astype(np.float32).reshape(shape)
    if tensor.type == TensorType.BF16:
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if tensor.type == TensorType.Q8_0:
        blocks = data.reshape(-1, 34)
        scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
        return (blocks[:, 2:].view(np.int8) * scales).reshape(shape)
    raise ModelFileError(
        f"tensor {tensor.name!r} has type {tensor.type.name}; quantizing starts from"
        " F32, F16, BF16 or Q8_0"
    )
