"""Opens a model from any kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.program import Dense, Pooling
from lanewise.loading.base.sentences import SentenceModel
from lanewise.loading.checkpoints.gguf_checkpoint import open_gguf
from lanewise.loading.checkpoints.hf_checkpoint import open_hugging_face
from lanewise.loading.checkpoints.packed_checkpoint import is_packed, open_packed
from lanewise.loading.drafters.attaching import attach_head, is_head
from lanewise.loading.files.weights_files import WEIGHTS, other_weights
from lanewise.loading.pooling.judges import TOKENS, is_judge, make_judge, overridden, with_answers
from lanewise.loading.pooling.pooled import add_dense, as_pooled
from lanewise.loading.pooling.sentence_transformers import read_sentence_model


def open_checkpoint(
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    mtp: bool | None = False,
    mmproj: Path | None = None,
    tower: bool = True,
    head: Path | None = None,
) -> Checkpoint:
    """Open a GGUF file or a Hugging Face directory.

    ``mmproj`` is the file with the tower of a GGUF file; without one it is looked for beside it.
    Without ``tower`` a tower is left out.

    ``overrides`` replace keys of a directory's config.json. With ``mtp`` the multi-token prediction
    head must be there and is read, with False it is left out, with None it is read if it is there.
    ``head`` is one that others made for the model, which is attached. ModelFileError for anything
    that cannot be served.
    """
    opened = _open(Path(path), overrides or {}, mtp, mmproj, tower)
    if head is not None:
        try:
            attach_head(opened, head)
        except BaseException:
            opened.close()
            raise
    return opened


def _open(
    path: Path, overrides: Mapping[str, Any], mtp: bool | None, mmproj: Path | None, tower: bool
) -> Checkpoint:
    try:
        is_directory = path.is_dir()
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    if not exists:
        raise ModelFileError(
            f"{path}: no such file or directory; give a GGUF file, a Hugging Face directory,"
            " or a hub id"
        )
    if is_head(path):
        raise ModelFileError(
            f"{path}: a head that guesses for a model; give the model, and this as its draft"
        )
    if is_directory and mmproj is not None:
        raise ModelFileError(
            f"{path}: mmproj gives a GGUF file its tower, and this is a directory, which has its"
            " own; leave it out"
        )
    if is_directory:
        return open_directory(path, overrides, mtp, tower)
    if overrides:
        raise ModelFileError(
            f"{path}: hf_overrides change a directory's config.json, and this is a GGUF file, whose"
            " metadata say whether it scores texts; leave them out"
        )
    return open_gguf(path, mtp, mmproj, tower)


def open_directory(
    path: Path, overrides: Mapping[str, Any], mtp: bool | None = False, tower: bool = True
) -> Checkpoint:
    """Open a Hugging Face directory, or a packed or quantized one."""
    config = path / "config.json"
    if not config.is_file():
        raise ModelFileError(
            f"{path}: config.json is missing; a Hugging Face directory has config.json,"
            f" tokenizer.json and {WEIGHTS}{other_weights(path)}"
        )
    fields = with_answers(overridden(config, overrides), path)
    sentences = read_sentence_model(path)
    pooling = None if sentences is None else Pooling(sentences.pooling, sentences.normalize)
    packed, judges = is_packed(fields), is_judge(fields.values)
    if judges and sentences is not None:
        raise ModelFileError(
            f"{path}: modules.json makes vectors of texts, {TOKENS} scores; accepted: one of both"
        )
    if judges or sentences is not None:
        if mtp:
            raise ModelFileError(
                f"{path}: mtp asks for a multi-token prediction head, which models that score texts"
                " or make vectors do not have; accepted: a model that generates text"
            )
        mtp = False
    if packed:
        opened = open_packed(path, fields, mtp, tower)
    else:
        opened = open_hugging_face(path, fields, pooling, mtp, tower)
    try:
        if judges and not (packed and opened.config.pooling):  # a packed one may be a judge
            make_judge(opened)
        if judges:
            files = {**opened.tokenizer.json_files, "config.json": fields.values}
            opened.tokenizer = replace(opened.tokenizer, json_files=files)
        if sentences is not None:
            _make_vectors_as(sentences, opened, packed)
    except BaseException:
        opened.close()
        raise
    return opened


def _make_vectors_as(sentences: SentenceModel, checkpoint: Checkpoint, packed: bool) -> None:
    """Pool the model's rows as its directory says; also a generative model's."""
    config = checkpoint.config
    pooling = Pooling(sentences.pooling, sentences.normalize)
    if config.pooling is None:
        as_pooled(checkpoint, pooling)
    else:
        pooling = replace(pooling, dense=config.pooling.dense)
        checkpoint.config = replace(config, pooling=pooling)
    if pooling.dense and sentences.dense and not packed:
        raise ModelFileError(
            f"{checkpoint.path}: modules.json lists {len(sentences.dense)} Dense modules, and the"
            " model is a classifier with a head of its own; accepted: one of both"
        )
    if not pooling.dense:  # a packed directory contains the dense heads
        for one in sentences.dense:
            add_dense(checkpoint, one.folder, Dense(one.outputs, one.bias, one.activation))
    checkpoint.sentences = sentences
