"""The types that the tensors of a checkpoint are held in, and what they take in memory."""

import logging
from collections import Counter
from collections.abc import Sequence

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role, Tensor
from lanewise.loading.base.formats import HELD, TensorType, row_bytes
from lanewise.loading.base.program import ModelConfig

logger = logging.getLogger(__name__)

FLOAT_TYPES = frozenset({TensorType.F32, TensorType.F16, TensorType.BF16})
QUANTIZED_ON_LOAD = {"q4_0": TensorType.Q4_0, "q8_0": TensorType.Q8_0}
QUANTIZED_GROUP = 32  # weights of one row that share a scale in both types
ARM_MACHINES, HALVES = ("aarch64", "arm64"), ("f16", "bf16")
MATRICES = frozenset(
    {
        Role.TOKEN_EMBEDDING,
        Role.OUTPUT,
        Role.ATTN_Q,
        Role.ATTN_K,
        Role.ATTN_V,
        Role.ATTN_OUTPUT,
        Role.ATTN_GATE,
        Role.LATENT_QUERY,
        Role.LATENT_DOWN,
        Role.LATENT_KEYS,
        Role.LATENT_VALUES,
        *(Role.STATE_IN, Role.STATE_KEYS, Role.STATE_VALUES),
        Role.STATE_GATE,
        Role.STATE_OUT,
        Role.FFN_GATE,
        Role.FFN_UP,
        Role.FFN_DOWN,
        Role.EXPERTS_IN,
        Role.EXPERTS_OUT,
        Role.EXPERTS_GATE,
        Role.EXPERTS_UP,
        Role.EXPERTS_DOWN,
        Role.SHARED_GATE,
        Role.SHARED_UP,
        Role.SHARED_DOWN,
        Role.PER_LAYER_EMBEDDING,
        Role.PER_LAYER_PROJECTION,
        *(Role.STREAMS_IN, Role.STREAMS_OUT, Role.LAUREL_DOWN, Role.LAUREL_UP),
        *(Role.COMPRESS_ROWS, Role.COMPRESS_GATE, Role.INDEX_ROWS, Role.INDEX_GATE),
        Role.ATTN_GROUPS,
        Role.PER_LAYER_GATE,
        Role.PER_LAYER_OUT,
        Role.MTP_PROJECTION,
        Role.HEAD_FUSION,
        Role.HEAD_OUTPUT,
        Role.HEAD_EMBEDDING,
        Role.HEAD_RETURN,
        Role.PATCHES,
    }
)


# And what has a state in its place, but for the small matrices of decay and beta.
STATES = frozenset(
    {Role.STATE_IN, Role.STATE_KEYS, Role.STATE_VALUES, Role.STATE_GATE, Role.STATE_OUT}
)
LATENT = frozenset({Role.LATENT_QUERY, Role.LATENT_DOWN, Role.LATENT_KEYS, Role.LATENT_VALUES})
ATTENTION = (
    frozenset({Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_OUTPUT, Role.ATTN_GATE})
    | LATENT
    | STATES
)
DENSE = frozenset(
    {Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN, Role.PER_LAYER_GATE, Role.PER_LAYER_OUT}
)
SHARED = frozenset({Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN})
LATENT_EXPERTS = frozenset({Role.EXPERTS_IN, Role.EXPERTS_OUT})
EXPERTS = frozenset({Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN})
# Parts of a model that may be held in types of their own; shared experts are dense.
PARTS = {"attention": ATTENTION, "ffn": DENSE | SHARED | LATENT_EXPERTS, "experts": EXPERTS}


def held_bytes(checkpoint: Checkpoint, weights: str | None) -> int:
    """Bytes that the matrices take in memory when they are asked to be of type ``weights``."""
    return sum(
        held_size(tensor, target)
        for tensor, target in zip(
            checkpoint.tensors, target_types(checkpoint, weights), strict=True
        )
    )


def tower_bytes(checkpoint: Checkpoint, weights: str | None) -> int:
    """Bytes that the matrices of its tower take, if it has one, asked to be ``weights``."""
    return 0 if checkpoint.tower is None else held_bytes(checkpoint.tower, weights)


def held_size(tensor: Tensor, target: TensorType) -> int:
    """Bytes that a tensor takes in memory when it is held in type ``target``."""
    if target is tensor.type:
        return tensor.n_bytes
    return row_bytes(target, tensor.cols) * tensor.rows


def is_matrix(checkpoint: Checkpoint, tensor: Tensor) -> bool:
    """Whether a tensor may be asked to be of another type; of towers dense heads, too."""
    of_tower = checkpoint.config.patches is not None and tensor.role is Role.DENSE
    return tensor.role in MATRICES or of_tower


def held_name(checkpoint: Checkpoint, weights: str | None) -> str:
    """The type that most matrices are held in when asked to be of type ``weights``, by name.

    Matrices that keep their type count by its name in the file.
    """
    asked = None if weights is None or "=" in weights else weights
    kinds = Counter(
        tensor.type if target is HELD.get(tensor.type, tensor.type) else target
        for tensor, target in zip(checkpoint.tensors, target_types(checkpoint, asked), strict=True)
        if tensor.rows > 1
    )
    return kinds.most_common(1)[0][0].name.lower() if kinds else checkpoint.weights_name


def warn_of_kept(checkpoint: Checkpoint, weights: str | None) -> None:
    """Say how many float matrices are asked to be of another type and keep theirs."""
    if weights not in QUANTIZED_ON_LOAD or weights == checkpoint.weights_name:
        return
    matrices = [tensor for tensor in checkpoint.tensors if is_matrix(checkpoint, tensor)]
    kept = [tensor.name for tensor in matrices if tensor.cols % QUANTIZED_GROUP]
    if kept:
        logger.warning(
            "%s: weights %s: %d of %d matrices keep their type, as their rows are not whole"
            " groups of %d; the first is %s",
            *(checkpoint.path, weights, len(kept), len(matrices), QUANTIZED_GROUP, kept[0]),
        )


def hint_of_floats(checkpoint: Checkpoint, weights: str | None, machine: str) -> str | None:
    """Arm has no fast products of 16-bit floats: what to do about a model held in them."""
    held = held_name(checkpoint, weights)
    if machine not in ARM_MACHINES or weights is not None or held not in HALVES:
        return None
    if any(tensor.packing is not None for tensor in checkpoint.tensors):
        return None  # packed weights stay what they are
    return (
        f"weights are {held}, which Arm multiplies at a fraction of the speed of q8_0:"
        " --weights q8_0 converts them while they load, and takes half the memory"
    )


def head_role(config: ModelConfig) -> Role:
    """The matrix that logits are made with: the embedding where that is both."""
    return Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT


def target_types(checkpoint: Checkpoint, weights: str | None) -> Sequence[TensorType]:
    """The type each tensor is held in when matrices are asked to be of type ``weights``.

    A head that others made to guess for a quantized model is held as q8_0 where nothing else is
    asked of it: its files have floats, and no answer depends on it.
    """
    found = model_types(checkpoint, weights)
    config = checkpoint.config
    heads = {
        number
        for number, layer in enumerate(config.layers)
        if layer.head is not None or layer.follows or (layer.mtp and config.reader is not None)
    }
    if not heads:
        return found
    if checkpoint.weights_name in (kind.name.lower() for kind in FLOAT_TYPES):
        return found
    return [
        TensorType.Q8_0
        if tensor.layer in heads
        and tensor.role in MATRICES
        and target in FLOAT_TYPES
        and tensor.cols % QUANTIZED_GROUP == 0
        else target
        for tensor, target in zip(checkpoint.tensors, found, strict=True)
    ]


def model_types(checkpoint: Checkpoint, weights: str | None) -> Sequence[TensorType]:
    """The types as :func:`target_types` says, a head like the rest.

    Float matrices become q4_0 or q8_0 if their rows divide into groups of 32; vectors and all
    other matrices keep their type. A file that is of type ``weights`` already stays as it is. Where
    nothing is asked, float32 matrices that were made of fewer bits become q8_0.
    ``weights`` may also name types of some parts, see :func:`part_types`.
    """
    own_name = checkpoint.weights_name
    if weights is not None and "=" in weights:
        return part_types(checkpoint, weights)
    is_tower = checkpoint.config.patches is not None
    if weights is None or (is_tower and weights == own_name):
        return [_unasked(checkpoint, tensor) for tensor in checkpoint.tensors]
    if weights == own_name:
        return [HELD.get(tensor.type, tensor.type) for tensor in checkpoint.tensors]
    if weights not in QUANTIZED_ON_LOAD:
        raise ModelFileError(
            f"{checkpoint.path}: weights {weights!r} cannot be made from {own_name}; accepted: "
            f"{own_name}, or q4_0 or q8_0 for a float file"
        )
    targets = []
    for tensor in checkpoint.tensors:
        target = tensor.type
        if is_matrix(checkpoint, tensor) and tensor.type not in FLOAT_TYPES:
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
        if is_matrix(checkpoint, tensor) and tensor.cols % QUANTIZED_GROUP == 0:
            target = QUANTIZED_ON_LOAD[weights]
        targets.append(target)
    return targets


def _unasked(checkpoint: Checkpoint, tensor: Tensor) -> TensorType:
    """The type that a tensor is held in where nothing is asked of it."""
    is_wide = checkpoint.is_widened and tensor.type is TensorType.F32 and tensor.role in MATRICES
    # In towers converters leave floats where rows were no whole groups before they were padded.
    of_tower = checkpoint.config.patches is not None and checkpoint.weights_name == "q8_0"
    is_left = of_tower and tensor.type in FLOAT_TYPES and tensor.role in ATTENTION | DENSE
    if (is_wide or is_left) and tensor.cols % QUANTIZED_GROUP == 0:
        return TensorType.Q8_0
    return HELD.get(tensor.type, tensor.type)


def part_types(checkpoint: Checkpoint, weights: str) -> Sequence[TensorType]:
    """The type each tensor is held in when some parts are asked to be of other types.

    ``weights`` is such as ``attention=q4_0,head=q4_0``: PARTS and the head, which is the embedding
    where that is both. Floats become either type, Q8_0 becomes Q4_0.
    """
    roles = PARTS | {"head": frozenset({head_role(checkpoint.config)})}
    wanted = dict(item.split("=") for item in weights.split(","))
    for part in wanted:
        if not any(tensor.role in roles[part] for tensor in checkpoint.tensors):
            raise ModelFileError(f"{checkpoint.path}: weights: the model has no {part}")
    target_of = {role: QUANTIZED_ON_LOAD[wanted[part]] for part in wanted for role in roles[part]}
    return [
        _part_type(checkpoint, tensor, target_of.get(tensor.role)) for tensor in checkpoint.tensors
    ]


def _part_type(checkpoint: Checkpoint, tensor: Tensor, target: TensorType | None) -> TensorType:
    if target is None or tensor.cols % QUANTIZED_GROUP:
        return _unasked(checkpoint, tensor)
    if target is tensor.type:
        return target
    from_q8 = tensor.type is TensorType.Q8_0 and target is TensorType.Q4_0
    if tensor.packing is not None or not (from_q8 or tensor.type in FLOAT_TYPES):
        kind = tensor.type.name.lower() + (" and packed" if tensor.packing is not None else "")
        raise ModelFileError(
            f"{checkpoint.path}: tensor {tensor.name} is {kind} and cannot become"
            f" {target.name.lower()!r}; f32, f16 and bf16 become q8_0 or q4_0, q8_0 becomes q4_0"
        )
    return target
