"""Model directories of three small texts, which a fuzzer writes as one input."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.json_mutation import mutate_parts
from tests.fuzz.model_paths import PADDING, open_model, scratch, write_padded

SEPARATOR = b"\n\x00\n"
INDEX = "model.safetensors.index.json"


def open_written(data: bytes, name: str) -> None:
    """config.json, the weights' header and the index, if it is not empty; ones for weights."""
    parts = [*data[1:].split(SEPARATOR, 2), b"", b""]
    folder = scratch() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_bytes(parts[0])
    size = len(parts[1]).to_bytes(8, "little")
    padding = PADDING[data[0] % len(PADDING)] if data else 0
    write_padded(folder / "model.safetensors", size + parts[1], padding)
    if parts[2]:
        (folder / INDEX).write_bytes(parts[2])
    open_model(folder)


def written(config: Mapping[str, Any], header: bytes, index: bytes = b"") -> bytes:
    """An input of these three."""
    parts = [json.dumps(config).encode(), header, *([index] if index else [])]
    return b"\x02" + SEPARATOR.join(parts)


def read_directory(folder: Path) -> bytes:
    """The input that a directory is."""
    content = (folder / "model.safetensors").read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return written(json.loads((folder / "config.json").read_bytes()), header)


def mutate(data: bytes, random: Random) -> bytes:
    """One value of the texts."""
    return data[:1] + mutate_parts(data[1:], SEPARATOR, random)


def words() -> Iterator[bytes]:
    """Parts of JSON, and keys that a right file may have."""
    for text in ("null", "true", "[]", "{}", "-1", "0", "1e400", "NaN", '"F32"', '"BF16"', '"U8"'):
        yield text.encode()
    for key in (
        *("rope_scaling", "rope_parameters", "quantization_config", "layer_types", "head_dim"),
        *(
            "__metadata__",
            "weight_map",
            "sliding_window",
            "max_window_layers",
            "tie_word_embeddings",
        ),
    ):
        yield f'"{key}":'.encode()
    yield SEPARATOR
