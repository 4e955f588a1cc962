"""Hugging Face directories: any config.json, safetensors header and index."""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.model_directory import mutate, open_written, read_directory, words, written

__all__ = ["mutate", "one_input", "seeds", "words"]


def one_input(data: bytes) -> None:
    """Open the directory that the bytes describe."""
    open_written(data, "hf")


def seeds(folder: Path) -> Iterator[bytes]:
    """Tiny models of every family, one with an index, and those that others have quantized."""
    from packed_by_others import write_model
    from tiny_models import FAMILIES, tiny_model, write_hf

    for family in FAMILIES:
        yield read_directory(write_hf(tiny_model(family), folder / family))
    whole = read_directory(folder / "llama2")
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    yield whole + b"\n\x00\n" + json.dumps(index).encode()
    for method in ("awq", "gptq", "compressed-tensors"):
        made = write_model(folder / method, method, act_order=method == "gptq")
        yield read_directory(made.packed)
    yield written({"model_type": "llama"}, b"{}")
