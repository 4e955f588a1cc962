"""Tensors of heads made by others besides those of layers: their names, what they say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.sources import SourceTensor

# Their names: in directories, in GGUF files.
OWN: Mapping[Role, tuple[tuple[str, ...], tuple[str, ...]]] = {
    Role.HEAD_FUSION: (("fc.weight", "model.fc.weight"), ("fc.weight",)),
    Role.HEAD_FUSION_NORM: (("input_norm.weight",), ("enc.output_norm.weight",)),
    Role.MTP_NORM: (("norm.weight", "model.norm.weight"), ("output_norm.weight",)),
    Role.HEAD_OUTPUT: (("lm_head.weight",), ("output.weight",)),
    Role.HEAD_EMBEDDING: (
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("token_embd.weight",),
    ),
    Role.HEAD_TOKENS: (("d2t", "model.d2t"), ("d2t",)),
}
INTEGERS = {"I16": "<i2", "I32": "<i4", "I64": "<i8"}


def name_of(role: Role, column: int, layer: int) -> str:
    """Return the name of a tensor in a file of a model with so many layers before."""
    return TENSOR_NAMES[role][column].format(layer)


def is_the_models(checkpoint: Checkpoint, tensor: SourceTensor | None) -> bool:
    """Whether an embedding is a copy of the model's, as most heads have one."""
    if tensor is None:
        return False
    own = next(one for one in checkpoint.tensors if one.role is Role.TOKEN_EMBEDDING)
    is_alike = (own.rows, own.cols) == tensor.shape and own.type == tensor.type
    if not is_alike or own.packing is not None or not isinstance(own.stored, memoryview):
        return False
    return own.stored == tensor.view()


def as_tokens(tensor: SourceTensor, name: str, column: int, vocab_size: int) -> SourceTensor:
    """Return the token of each row of the head's output, as float32.

    Directories have the distance of a token from its row, GGUF files the token.
    """
    kind = tensor.type.name if isinstance(tensor.type, TensorType) else tensor.type
    if kind not in INTEGERS or len(tensor.shape) != 1:
        raise ModelFileError(
            f"{tensor.where}: tensor 'd2t' is {kind} of shape {list(tensor.shape)}; whole numbers"
            " in one row are needed"
        )
    tokens = np.frombuffer(tensor.view(), INTEGERS[kind]).astype(np.int64)
    if column == HF:
        tokens = tokens + np.arange(len(tokens))
    if len(np.unique(tokens)) != len(tokens) or tokens.min() < 0 or tokens.max() >= vocab_size:
        raise ModelFileError(
            f"{tensor.where}: tensor 'd2t' names tokens {tokens.min()} to {tokens.max()}; each once"
            f" and below the model's {vocab_size} are needed"
        )
    data = memoryview(tokens.astype("<f4").tobytes())
    return SourceTensor(tensor.where, (len(tokens),), TensorType.F32, data, lambda: None)
