"""Where tensors lie in the weights file of a quantized model, and what its header says."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.checkpoints.packed_checkpoint import ALIGNMENT, ROWS, TensorNote
from lanewise.loading.families.gguf_rope import ROPE_FACTORS
from lanewise.loading.files.gguf import GgufFile, accepted_types
from lanewise.loading.programs.plain import plain_layers
from lanewise.loading.writing.gguf_writer import (
    CANNOT,
    TensorInfo,
    aligned,
    gguf_header,
    metadata_like,
    metadata_of,
)
from lanewise.loading.writing.packed_writer import Entry, header_of
from lanewise.text.gguf_export import gguf_tokenizer
from lanewise_quantizer.commands.plan import Target, tensor_type
from lanewise_quantizer.commands.tables import Fitting


@dataclass(frozen=True)
class WeightsFile:
    """The plan of a weights file; ``header`` begins it once all checksums are known."""

    size: int
    offsets: Mapping[str, int]  # of tensors from the start of the file


def safetensors_plan(targets: Sequence[Target], fitting: Fitting) -> WeightsFile:
    """Return where tensors lie in model.safetensors."""
    ordered = in_file_order(targets)
    offset = len(safetensors_header(targets, fitting, {}))
    offsets = {}
    for target in ordered:
        offsets[target.name] = offset
        offset += target.n_bytes
    return WeightsFile(offset, offsets)


def safetensors_header(
    targets: Sequence[Target], fitting: Fitting, checksums: Mapping[str, int]
) -> bytes:
    """Return the header of model.safetensors; its size does not depend on the checksums."""
    entries = []
    for target in in_file_order(targets):
        source = target.source
        dtype = "U8" if target.is_matrix else "F32"
        shape = (source.rows, target.row_bytes) if target.is_matrix else (source.cols,)
        note = TensorNote(
            tensor_type(target.type),
            source.rows,
            source.cols,
            checksums.get(target.name, 0),
            fitting.table(target.type),
        )
        entries.append(Entry(target.name, dtype, shape, target.n_bytes, note))
    return header_of(entries, {"layout": ROWS})


def in_file_order(targets: Sequence[Target]) -> list[Target]:
    """Return matrices first, those of whole cache lines before others, which would shift them."""
    return sorted(targets, key=lambda t: (not t.is_matrix, t.n_bytes % ALIGNMENT != 0))


@dataclass(frozen=True)
class GgufPlan(WeightsFile):
    """A GGUF file, whose header is known before any tensor is written."""

    header: bytes
    rope_factors: bytes = b""  # of a tensor of their own at ``rope_at``; empty if there is none
    rope_at: int = 0
    copies: Sequence[Copied] = ()


@dataclass(frozen=True)
class Copied:
    """A tensor that a GGUF file has from another as it is."""

    file: Path
    start: int
    n_bytes: int
    at: int  # where it lies in the new file


def gguf_plan(checkpoint: Checkpoint, targets: Sequence[Target]) -> GgufPlan:
    """Return the header of a GGUF file and where its tensors lie."""
    if checkpoint.path.is_file():
        return rewritten_plan(checkpoint, targets)
    infos: list[TensorInfo] = []
    offset = 0
    for target in targets:
        source = target.source
        shape = (source.cols, source.rows) if target.is_matrix else (source.cols,)
        infos.append((target.name, shape, int(tensor_type(target.type)), offset))
        offset = aligned(offset + target.n_bytes)
    rope_at, factors = offset, rope_tensor(checkpoint)
    if factors:
        infos.append((ROPE_FACTORS, (len(factors) // 4,), int(TensorType.F32), rope_at))
        offset = aligned(offset + len(factors))
    tokenizer = gguf_tokenizer(checkpoint.tokenizer)
    types = [target.type for target in targets if target.is_matrix]
    header = gguf_header(metadata_of(checkpoint, types, tokenizer), infos)
    offsets = {name: len(header) + at for name, _, _, at in infos}
    return GgufPlan(len(header) + offset, offsets, header, factors, len(header) + rope_at)


def rewritten_plan(checkpoint: Checkpoint, targets: Sequence[Target]) -> GgufPlan:
    """Return the plan of a GGUF file with some tensors of another in new types, the rest copied.

    ModelFileError for a tensor whose size is not known, since its type is not.
    """
    parts: dict[str, list[tuple[int, Target]]] = defaultdict(list)
    for target in targets:
        name, first = checkpoint.places[target.source.role, target.source.layer]
        parts[name].append((first // target.source.cols * target.row_bytes, target))
    types = [target.type for target in targets] or [checkpoint.weights_name]
    with ExitStack() as opened:
        files = [opened.enter_context(closing(GgufFile(path))) for path in checkpoint.files]
        tensors = {file.path: list(file.tensors.values()) for file in files}
        metadata = metadata_like(files[0], types)
    infos: list[TensorInfo] = []
    offsets: dict[str, int] = {}
    copies: list[Copied] = []
    offset = 0
    for path, stored in tensors.items():
        for tensor in stored:
            kind, size = tensor.type, tensor.n_bytes
            if tensor.name in parts:
                kind = tensor_type(parts[tensor.name][0][1].type)
                size = sum(target.n_bytes for _, target in parts[tensor.name])
                offsets |= {target.name: offset + at for at, target in parts[tensor.name]}
            elif not size:
                raise ModelFileError(
                    f"{path}: tensor {tensor.name!r} has type {kind.name}; {accepted_types()}"
                )
            else:
                copies.append(Copied(path, tensor.start, size, offset))
            infos.append((tensor.name, tensor.shape, int(kind), offset))
            offset = aligned(offset + size)
    header = gguf_header(metadata, infos)
    begin = len(header)
    return GgufPlan(
        begin + offset,
        {name: begin + at for name, at in offsets.items()},
        header,
        copies=[replace(one, at=begin + one.at) for one in copies],
    )


def rope_tensor(checkpoint: Checkpoint) -> bytes:
    """Return the divisors of the RoPE frequencies if a tensor must hold them."""
    factors = plain_layers(checkpoint.config, CANNOT).rope.factors
    if factors is None:
        return b""
    if checkpoint.config.architecture not in ("llama", "mistral"):
        raise ModelFileError(
            f"{checkpoint.path}: GGUF's {checkpoint.config.architecture} has no place for scaled"
            " RoPE frequencies; accepted with --gguf: rope_type 'default'"
        )
    return struct.pack(f"<{len(factors)}f", *factors)
