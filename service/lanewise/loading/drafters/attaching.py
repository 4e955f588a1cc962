"""Finds out what kind of drafter a path is, and makes a head part of a model's program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lanewise.loading.base.checkpoint import AttachedHead, Checkpoint, ModelFileError
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.drafters import dflash, eagle3, gemma4_assistant
from lanewise.loading.files.gguf import texts_at
from lanewise.loading.programs.native_program import check_program

START_BYTES = 1 << 16  # of a GGUF file: writers put its architecture first
Attach = Callable[[Checkpoint, Path], None]
GGUF_KINDS: dict[str, Attach] = {
    dflash.ARCHITECTURE: dflash.attach_file,
    eagle3.ARCHITECTURE: eagle3.attach_file,
    gemma4_assistant.ARCHITECTURE: gemma4_assistant.attach_file,
}


def attaching_of(path: Path) -> Attach | None:
    """Return what attaches a head; None if the path is something else, or nothing."""
    if (path / "config.json").is_file():
        fields = Fields(read_object(path / "config.json"), str(path / "config.json"))
        kinds = (eagle3, gemma4_assistant, dflash)
        return next((one.attach_directory for one in kinds if one.is_config(fields)), None)
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            texts = texts_at(file.read(START_BYTES))
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return GGUF_KINDS.get(texts.get("general.architecture", ""))


def is_head(path: Path) -> bool:
    """Whether a path is a head that guesses with a model's own rows."""
    return attaching_of(path) is not None


def attach_head(checkpoint: Checkpoint, path: Path) -> None:
    """Make a head the last layer of a model that is open; its files are closed with the model's.

    ModelFileError if the head does not fit the model.
    """
    attach, config = attaching_of(path), checkpoint.config
    if attach is None:
        raise ModelFileError(f"{path}: no head that guesses with a model's rows")
    if config.pooling is not None:
        raise ModelFileError(
            f"{path}: is to guess for {checkpoint.path}, which makes vectors or scores; accepted: a"
            " model that generates text"
        )
    if config.residual_scale != 1:
        raise ModelFileError(
            f"{path}: is to guess for {checkpoint.path}, whose residual_scale is"
            f" {config.residual_scale}; accepted: a model with 1, as heads were made for"
        )
    attach(checkpoint, path)
    check_program(checkpoint.config, str(path))
    checkpoint.files = (*checkpoint.files, path)
    checkpoint.head = AttachedHead(path, len(config.ropes))
