"""A random model of one layer in which one token makes a step fail as it runs."""

from dataclasses import replace

import numpy as np

from lanewise.commands.selftest import random_checkpoint
from lanewise.loading.base.checkpoint import Checkpoint, Role, Tensor
from lanewise.loading.base.formats import TensorType

FAILS = 500  # the first input of its attention is infinite, and has no int8 code


def failing_checkpoint() -> Checkpoint:
    """What only this token has, in a float embedding, is too large for the norm behind it."""
    made = random_checkpoint(TensorType.Q8_0)
    floats = random_checkpoint(TensorType.F32).tensors
    made.tensors = [
        _changed(of_floats if tensor.role is Role.TOKEN_EMBEDDING else tensor)
        for tensor, of_floats in zip(made.tensors, floats, strict=True)
    ]
    return made


def _changed(tensor: Tensor) -> Tensor:
    if tensor.role not in (Role.TOKEN_EMBEDDING, Role.ATTN_NORM):
        return tensor
    values = np.frombuffer(tensor.data, np.float32).reshape(tensor.rows, tensor.cols).copy()
    if tensor.role is Role.TOKEN_EMBEDDING:
        size = np.abs(values).mean()
        values[:, 0] = 0
        values[FAILS, 0] = 4 * size
    else:
        values[:, 0] = 3e38
    return replace(tensor, stored=memoryview(values.tobytes()))
