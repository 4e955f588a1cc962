"""Which tensors a program needs and their shapes, and the check that a file has exactly these."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import ModelFileError, Tensor
from lanewise.loading.base.formats import MATRIX_TYPES, VECTOR_TYPES, TensorType
from lanewise.loading.base.names import TENSOR_NAMES
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.programs.native_program import program_tensors
from lanewise.loading.programs.turned_rows import whole_heads, with_halves

REMOVED_TYPES = {31, 32, 33, 36, 37, 38}  # repacked forms that GGUF once had


def bind_tensors(
    config: ModelConfig,
    sources: Sources,
    column: int,
    interleaved_rope: bool,
    source: str,
    first_layer: int | None = None,
) -> list[Tensor]:
    """Give each tensor of the file its role, in the order of the forward step.

    With ``first_layer`` the file has only the tensors of the layers from there on.
    A missing, unknown, misshapen or unreadable tensor is an error that names it.
    """
    if interleaved_rope:
        sources = with_halves(config, sources, column)
    wanted = [
        one
        for one in program_tensors(config)
        if first_layer is None or (one.of_layer and one.layer >= first_layer)
        if not one.optional or TENSOR_NAMES[one.role][column].format(one.layer) in sources
    ]
    names = [TENSOR_NAMES[one.role][column].format(one.layer) for one in wanted]
    missing = [name for name in names if name not in sources]
    if missing:
        raise ModelFileError(f"{source}: {_listed('missing tensor', missing)}")
    extra = sorted(set(sources) - set(names))
    if extra:
        raise ModelFileError(
            f"{source}: {_listed('unknown tensor', extra)}; not part of a {config.architecture}"
            " model as served here"
        )
    tensors = []
    for (role, of_layer, layer, rows, cols, vector, _), name in zip(wanted, names, strict=True):
        item = sources[name]
        kind = _checked_type(item, name, vector)
        needed = (cols,) if vector else (rows, cols)
        if item.shape != needed:
            raise ModelFileError(
                f"{item.where}: tensor {name!r} has shape {list(item.shape)}"
                f" (outputs first); the config needs {list(needed)}"
            )
        heads = whole_heads(config, role, layer) if interleaved_rope and of_layer else 0
        place = (item.data, heads, item.release, item.packing, item.table)
        tensors.append(Tensor(name, role, layer, kind, rows, cols, *place))
    return tensors


def _checked_type(item: SourceTensor, name: str, vector: bool) -> TensorType:
    accepted = VECTOR_TYPES if vector else MATRIX_TYPES
    if isinstance(item.type, TensorType) and item.type in accepted:
        return item.type
    shown = item.type.name if isinstance(item.type, TensorType) else item.type
    hint = ""
    if item.type in REMOVED_TYPES:
        hint = "; this type was removed from GGUF: requantize the model, for example to Q4_0"
    raise ModelFileError(
        f"{item.where}: tensor {name!r} has type {shown}; accepted are"
        f" {', '.join(kind.name for kind in accepted)}{hint}"
    )


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{what}{'s' if len(names) > 1 else ''} {shown}{more}"
