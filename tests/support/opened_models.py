"""Models of files in memory: encoders that run, and directories written as memory holds them."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.writing.packed_writer import write_packed
from lanewise.runtime import Encoder, Model

ISA = os.environ.get("LANEWISE_ISA")


@contextmanager
def opened_encoder(
    path: Path,
    isa: str | None = ISA,
    threads: int = 2,
    weights: str | None = None,
    max_tokens: int = 512,
    overrides: Mapping[str, Any] | None = None,
) -> Iterator[Encoder]:
    """What runs the texts of a file or directory."""
    with (
        open_checkpoint(path, overrides) as checkpoint,
        Model.load(checkpoint, weights=weights, isa=isa, threads=1) as model,
        Encoder(model, threads=threads, max_tokens=max_tokens) as encoder,
    ):
        yield encoder


def write_as_packed(path: Path, to: Path, weights: str | None = None) -> Path:
    """Write a model's directory as memory holds it; return it."""
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, weights=weights, isa=ISA, threads=1) as model,
    ):
        tensors = [model.packed(tensor) for tensor in checkpoint.tensors]
        write_packed(to, checkpoint, tensors, model.info.isa)
    return to
