"""What heads made by others have in common: tensors besides those of layers, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.names import GGUF, HF, TENSOR_NAMES
from lanewise.loading.base.sources import Sources, SourceTensor

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


def check_made_for(
    checkpoint: Checkpoint, source: str, rows: Iterable[tuple[str, int, int]]
) -> None:
    """Raise for a head of another model: of a field, its value and the model's are given."""
    for key, value, wanted in rows:
        if value != wanted:
            raise ModelFileError(
                f"{source}: {key} is {value}; {wanted} is needed, as of {checkpoint.path},"
                " which it is to guess for"
            )


def with_embedding(sources: Sources, vocab_size: int, size: int) -> dict[str, SourceTensor]:
    """Return a GGUF file's tensors with an embedding, by which programs know the vocabulary."""
    found = dict(sources)
    like = next(iter(sources.values()))
    found.setdefault(
        TENSOR_NAMES[Role.TOKEN_EMBEDDING][GGUF], replace(like, shape=(vocab_size, size))
    )
    return found


def own_parts(
    checkpoint: Checkpoint, named: dict[str, SourceTensor], column: int, layer: int
) -> dict[str, Any]:
    """Return which embedding and output a head has of its own, by the names that heads say it.

    A copy of the model's embedding is left out of ``named``; d2t becomes tokens.
    """
    embedding = name_of(Role.HEAD_EMBEDDING, column, layer)
    if is_the_models(checkpoint, named.get(embedding)):
        del named[embedding]
    tokens = name_of(Role.HEAD_TOKENS, column, layer)
    if tokens in named:
        named[tokens] = as_tokens(named[tokens], column, checkpoint.config.vocab_size)
    output = named.get(name_of(Role.HEAD_OUTPUT, column, layer))
    return {
        "own_embedding": embedding in named,
        "outputs": 0 if output is None else output.shape[0],
        "chooses": tokens in named,
    }


def is_the_models(checkpoint: Checkpoint, tensor: SourceTensor | None) -> bool:
    """Whether an embedding is a copy of the model's, as most heads have one."""
    if tensor is None:
        return False
    own = next(one for one in checkpoint.tensors if one.role is Role.TOKEN_EMBEDDING)
    is_alike = (own.rows, own.cols) == tensor.shape and own.type == tensor.type
    if not is_alike or own.packing is not None or not isinstance(own.stored, memoryview):
        return False
    return own.stored == tensor.view()


def as_tokens(tensor: SourceTensor, column: int, vocab_size: int) -> SourceTensor:
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
