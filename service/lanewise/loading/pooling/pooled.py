"""Turns generative models into pooled ones, and adds dense heads to pooled models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role, Tensor
from lanewise.loading.base.formats import MATRIX_TYPES, VECTOR_TYPES, TensorType, row_bytes
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.program import MAX_DENSE, Dense, Pooling
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.files.weights_files import open_weights, read_sources

# Of embedding models made from generative ones (Qwen3-Embedding).
LAST = Pooling("last", normalize=True)
LINEAR = "linear"  # name of the matrix of Dense modules


def as_pooled(checkpoint: Checkpoint, pooling: Pooling = LAST) -> None:
    """Make a generative model pool its rows, before it is loaded.

    Attention stays causal. An output head of its own is left out.
    """
    checkpoint.config = replace(checkpoint.config, pooling=pooling)
    checkpoint.tensors = [one for one in checkpoint.tensors if one.role is not Role.OUTPUT]


def as_judge(checkpoint: Checkpoint, answers: Sequence[int]) -> None:
    """Make a generative model score its input by the odds of some next tokens.

    The results are the logits of ``answers``, token ids such as those of yes and no
    (Qwen3-Reranker). Call it before loading. ModelFileError for packed weights, of which single
    rows cannot be taken.
    """
    config = checkpoint.config
    role = Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT
    head = next(one for one in checkpoint.tensors if one.role is role)
    odd = [token for token in answers if not 0 <= token < head.rows]
    if odd or not answers:
        raise ModelFileError(
            f"{checkpoint.path}: answers {odd or 'none'}; accepted: token ids from 0 to"
            f" {head.rows - 1}"
        )
    if head.packing is not None or config.logit_scale != 1.0:
        raise ModelFileError(
            f"{checkpoint.path}: its head is packed or scaled; to score texts with it, give the"
            " original model"
        )
    size, data = row_bytes(head.type, head.cols), head.data
    rows = b"".join(data[token * size : (token + 1) * size] for token in answers)
    as_pooled(checkpoint, Pooling("last", dense=(Dense(len(answers)),)))
    name = TENSOR_NAMES[Role.DENSE][HF].format(0)
    checkpoint.tensors.append(
        Tensor(
            *(name, Role.DENSE, 0, head.type, len(answers), head.cols, memoryview(rows), 0),
            table=head.table,
        )
    )


def add_dense(checkpoint: Checkpoint, folder: Path, dense: Dense) -> None:
    """Add a dense head to a pooled model, with the weights in ``folder``.

    They are linear.weight and perhaps linear.bias, as in sentence-transformers' modules.
    """
    pooling = checkpoint.config.pooling
    assert pooling is not None
    number = len(pooling.dense)
    if number == MAX_DENSE:
        raise ModelFileError(f"{folder}: at most {MAX_DENSE} dense heads are supported")
    inputs = pooling.dense[-1].outputs if pooling.dense else checkpoint.config.hidden_size
    files = open_weights(folder)
    checkpoint.also_close(lambda: close_all(files))
    sources = read_sources(files)
    wanted: dict[str, tuple[Role, tuple[int, ...]]] = {}
    wanted["weight"] = (Role.DENSE, (dense.outputs, inputs))
    if dense.bias:
        wanted["bias"] = (Role.DENSE_BIAS, (dense.outputs,))
    names = {f"{LINEAR}.{end}": what for end, what in wanted.items()}
    if set(sources) != set(names):
        raise ModelFileError(
            f"{folder}: tensors {', '.join(sorted(sources)) or 'none'}; needed are"
            f" {' and '.join(names)}"
        )
    tensors = [
        _dense_tensor(name, sources[name], role, shape, number)
        for name, (role, shape) in names.items()
    ]
    checkpoint.tensors += tensors
    checkpoint.config = replace(
        checkpoint.config, pooling=replace(pooling, dense=(*pooling.dense, dense))
    )


def _dense_tensor(
    name: str, source: SourceTensor, role: Role, shape: tuple[int, ...], number: int
) -> Tensor:
    accepted = MATRIX_TYPES if role is Role.DENSE else VECTOR_TYPES
    kind = source.type
    if not isinstance(kind, TensorType) or kind not in accepted or source.shape != shape:
        shown = kind.name if isinstance(kind, TensorType) else kind
        raise ModelFileError(
            f"{source.where}: tensor {name!r} is {shown} {list(source.shape)}; {list(shape)} of"
            f" {', '.join(one.name for one in accepted)} is needed"
        )
    rows, cols = shape if len(shape) == 2 else (1, shape[0])
    return Tensor(
        TENSOR_NAMES[role][HF].format(number),
        *(role, number, kind, rows, cols, source.data, 0, source.release),
    )
