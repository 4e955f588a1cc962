"""The types that the tensors of a checkpoint are held in, and what they take in memory."""

from collections.abc import Sequence

from lanewise.loading.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.loading.formats import TensorType, row_bytes

FLOAT_TYPES = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16})
QUANTIZED_ON_LOAD = {"q4_0": TensorType.Q4_0, "q8_0": TensorType.Q8_0}
QUANTIZED_GROUP = 32  # weights of one row that share a scale in both types
MATRICES = frozenset(
    {
        Role.TOKEN_EMBEDDING,
        Role.OUTPUT,
        Role.ATTN_Q,
        Role.ATTN_K,
        Role.ATTN_V,
        Role.ATTN_OUTPUT,
        Role.FFN_GATE,
        Role.FFN_UP,
        Role.FFN_DOWN,
        Role.EXPERTS_GATE,
        Role.EXPERTS_UP,
        Role.EXPERTS_DOWN,
        Role.SHARED_GATE,
        Role.SHARED_UP,
        Role.SHARED_DOWN,
    }
)


def held_bytes(checkpoint: Checkpoint, weights: str | None) -> int:
    """Bytes that the matrices take in memory when they are asked to be of type ``weights``."""
    return sum(
        tensor.n_bytes if target is tensor.type else row_bytes(target, tensor.cols) * tensor.rows
        for tensor, target in zip(
            checkpoint.tensors, target_types(checkpoint, weights), strict=True
        )
    )


def target_types(checkpoint: Checkpoint, weights: str | None) -> Sequence[TensorType]:
    """The type each tensor is held in when matrices are asked to be of type ``weights``.

    Float matrices become q4_0 or q8_0 if their rows divide into groups of 32; vectors and all
    other matrices keep their type. A file that is of type ``weights`` already stays as it is.
    """
    own_name = checkpoint.weights_name
    if weights is None or weights == own_name:
        return [tensor.type for tensor in checkpoint.tensors]
    if weights not in QUANTIZED_ON_LOAD:
        raise ModelFileError(
            f"{checkpoint.path}: weights {weights!r} cannot be made from {own_name}; accepted: "
            f"{own_name}, or q4_0 or q8_0 for a float file"
        )
    targets = []
    for tensor in checkpoint.tensors:
        target = tensor.type
        if tensor.role in MATRICES and tensor.type not in FLOAT_TYPES:
            raise ModelFileError(
                f"{checkpoint.path}: tensor {tensor.name} is {tensor.type.name.lower()} already "
                f"and cannot become {weights!r}; accepted: weights {own_name!r}, or a file with "
                "f32, f16 or bf16 matrices"
            )
        if tensor.packing is not None:
            raise ModelFileError(
                f"{checkpoint.path}: packed weights stay {own_name}; to hold them as {weights!r},"
                f" pack the original model with --weights {weights}"
            )
        if tensor.role in MATRICES and tensor.cols % QUANTIZED_GROUP == 0:
            target = QUANTIZED_ON_LOAD[weights]
        targets.append(target)
    return targets
