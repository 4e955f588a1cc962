"""The identity of a loaded model, as receipts name it."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lanewise.loading.checkpoints.small_model import cache_folder
from lanewise.receipts.statement import ModelIdentity
from lanewise.runtime import Model
from lanewise.store.fingerprint import content_digest


def identity_of(
    model: Model,
    kv_type: str,
    max_model_len: int | None,
    template: str | None,
    adapter: str | None = None,
) -> ModelIdentity:
    """What its logits depend on; ``adapter`` is the digest of an adapter's files.

    The files are read for it, unless their digests are remembered.
    """
    config, files = model.config, model.files
    if config.has_mtp:  # no answer depends on what guesses
        config = replace(config, layers=config.layers[: -config.n_head_layers], reader=None)
    if model.head is not None:
        config = replace(config, ropes=config.ropes[: model.head.n_ropes])
        files = tuple(file for file in files if file != model.head.path)
    # ``parts`` tells which matrices are held in types of their own.
    program = f"{config!r}\n{model.parts}"
    return ModelIdentity(
        name=model.name,
        files_sha256=files_digest(files),
        program_sha256=hashlib.sha256(program.encode()).hexdigest(),
        weights=model.weights,
        numerics=model.info.numerics,
        kv_cache_dtype=kv_type,
        max_model_len=max_model_len,
        adapter_sha256=adapter,
        template=template,
    )


def files_digest(files: Sequence[Path]) -> str:
    """SHA-256 of the contents of files, in the order of their names."""
    return content_digest(files, cache_folder())
