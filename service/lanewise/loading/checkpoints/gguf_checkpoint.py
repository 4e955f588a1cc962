"""Opens a GGUF file, or all the parts of a split one, as a checkpoint."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path, PurePath
from typing import Any, TypeVar

import numpy as np

from lanewise.loading.base.checkpoint import (
    Checkpoint,
    ModelFileError,
    Role,
    Tensor,
    TokenizerFiles,
)
from lanewise.loading.base.formats import BLOCKS
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import GGUF, is_vector
from lanewise.loading.base.program import ModelConfig, Pooling
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints.mtp import with_mtp, with_mtp_if_there
from lanewise.loading.families.common import with_both_ways
from lanewise.loading.families.encoders_gguf import gguf_text_pooling, labels_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf_rope import ROPE_TENSORS
from lanewise.loading.families.naming import take_heads_apart
from lanewise.loading.families.table import gguf_family
from lanewise.loading.files.gguf import GgufFile, read_sources
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.pooling.heads import with_embedding, with_pooling
from lanewise.loading.programs.binding import bind_tensors
from lanewise.loading.programs.harmless import refuse_unknown_metadata
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.native_program import check_program
from lanewise.loading.quantized.nvfp4 import nvfp4_blocks
from lanewise.loading.towers.mmproj import add_mmproj
from lanewise.loading.vocabulary.gguf_text import LABELS

AnyPath = TypeVar("AnyPath", bound=PurePath)
SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Values of general.type for files that are no complete model, with advice.
OTHER_KINDS = {
    "adapter": "a LoRA adapter; give its base model, and the adapter as PEFT saves it beside it",
    "imatrix": "an importance matrix, which only other programs' quantizing reads; give a model",
    "mmproj": "the part of a model that sees or hears; give the GGUF file of its language model",
    "vocab": "a vocabulary without a model; give a model",
}


def open_gguf(
    path: Path, mtp: bool | None = False, mmproj: Path | None = None, tower: bool = True
) -> Checkpoint:
    """Open a GGUF file; with ``mtp`` also its multi-token prediction head, which must be there.

    With None the head is read if the file has one. ``mmproj`` is the file of its tower; without one
    it is looked for beside the file; without ``tower`` there is none. ModelFileError for what
    cannot be served.
    """
    files = open_parts(path)
    try:
        gguf = files[0]
        fields = Fields(gguf.metadata, str(gguf.path))
        refuse_other_kinds(fields)
        arch = fields.text("general.architecture")
        family = gguf_family(arch, str(path))
        stored = read_sources(files)
        sources = with_embedding(nvfp4_blocks(stored), GGUF)
        config, sources = read_program(family, fields, sources)
        if mtp:
            config, sources = with_mtp(family, config, sources, GGUF, str(path))
        elif mtp is None and config.pooling is None:
            config, sources = with_mtp_if_there(family, config, sources, GGUF, str(path))
        labels = labels_of(ModelFile(fields, sources, GGUF), config.pooling)
        refuse_unknown_metadata(fields, arch)
        for name in ROPE_TENSORS:
            sources.pop(name, None)
        named = Rearranged(sources, GGUF)
        take_heads_apart(named, config)
        family.gguf_tensors(named, config)
        tensors = bind_tensors(config, named.out, GGUF, family.gguf_interleaved_rope, str(path))
    except BaseException:
        close_all(files)
        raise
    metadata = {**gguf.metadata, LABELS: labels}
    tokenizer = TokenizerFiles(gguf.path, config.vocab_size, gguf=metadata)
    opened = Checkpoint(
        gguf.path,
        stem_of(path),
        config,
        tensors,
        tokenizer,
        lambda: close_all(files),
        files=tuple(file.path for file in files),
    )
    opened.places = places_of(stored, tensors)
    try:
        if tower:
            add_mmproj(opened, mmproj)
    except BaseException:
        opened.close()
        raise
    return opened


def read_program(
    family: Family, fields: Fields, sources: dict[str, SourceTensor]
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """Return the program that metadata and tensors describe, and the tensors it needs."""
    file = ModelFile(fields, sources, GGUF)
    config = check_program(family.program(file), fields.source)
    if config.pooling is not None:
        return config, sources
    pooling, sources = gguf_text_pooling(file, sources)
    key = "{arch}.attention.causal"
    if not file.flag(key, default=True):
        if any(one.attention is not None and one.attention.window for one in config.layers):
            raise file.fail(key, "true of a model with a sliding window")
        config = replace(with_both_ways(config, file, key), pooling=None)
        pooling = pooling or Pooling()
    return with_pooling(config, sources, pooling, GGUF)


def places_of(
    stored: Mapping[str, SourceTensor], tensors: Iterable[Tensor]
) -> dict[tuple[Role, int], tuple[str, int]]:
    """Return which matrices lie in the file as they are, and where: see Checkpoint.places."""
    at = sorted((_address(one.view()), name) for name, one in stored.items() if one.n_bytes)
    found: dict[tuple[Role, int], tuple[str, int]] = {}
    left = {name: prod(one.shape) for name, one in stored.items()}
    for tensor in tensors:
        if is_vector(tensor.role) or not isinstance(tensor.stored, memoryview):
            continue
        address = _address(tensor.stored)
        number = bisect_right(at, (address, "\U0010ffff")) - 1
        if number < 0:
            continue
        start, name = at[number]
        block = BLOCKS[tensor.type]
        if stored[name].type == tensor.type and address < start + stored[name].n_bytes:
            first = (address - start) // block.n_bytes * block.weights
            found[tensor.role, tensor.layer] = name, first
            left[name] -= tensor.rows * tensor.cols
    return {key: place for key, place in found.items() if left[place[0]] == 0}


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def open_parts(path: Path) -> list[GgufFile]:
    """Open a file and, if it was split, its other parts; the first part has the metadata."""
    files = [GgufFile(path)]
    try:
        fields = Fields(files[0].metadata, str(path))
        count = fields.integer("split.count", default=1, least=0)
        if count <= 1:
            return files
        paths = parts_of(path)
        if len(paths) != count:
            raise fields.fail("split.count", f"{len(paths)}, as the file's name says,")
        missing = [part.name for part in paths if not part.is_file()]
        if missing:
            raise ModelFileError(
                f"{path}: one of {count} files; {', '.join(missing[:4])} must lie beside it"
            )
        files.extend(map(GgufFile, paths))
        files.pop(0).close()
        for number, file in enumerate(files):
            own = Fields(file.metadata, str(file.path))
            if own.integer("split.no", least=0) != number or own.integer("split.count") != count:
                raise own.fail("split.no", f"{number} of {count}")
    except BaseException:
        close_all(files)
        raise
    return files


def parts_of(path: AnyPath) -> list[AnyPath]:
    """Return all files of a split model of which this is one by name; else the file alone."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = (f"{match['stem']}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1))
    return [path.with_name(name) for name in names]


def stem_of(path: Path) -> str:
    """Return the model's name: the file name without suffix and part number."""
    match = SPLIT.fullmatch(path.name)
    return path.stem if match is None else match["stem"]


def refuse_other_kinds(fields: Fields) -> None:
    """Raise ModelFileError for GGUF files that are no model."""
    said = {"general.type": fields.text("general.type", default="model")}
    if (kind := other_kind({**fields.values, **said})) is not None:
        raise ModelFileError(f"{fields.source}: this is {OTHER_KINDS[kind]}")


def other_kind(values: Mapping[str, Any]) -> str | None:
    """Which kind of file that is no model has these metadata; None for a model's."""
    is_projector = values.get("general.architecture") == "clip"
    kind = "mmproj" if is_projector else values.get("general.type")
    return kind if kind in OTHER_KINDS else None
