"""Writes the headers of GGUF files, version 3."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.families.table import family_named
from lanewise.loading.files.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, STRING, GgufFile
from lanewise.loading.programs.plain import plain_layers

VERSION = 3
QUANTIZATION_VERSION = 2
CANNOT = "--gguf cannot write"
# Values of general.file_type, by the type of most matrices.
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10,
    "q3_k": 12, "q4_k": 15, "q5_k": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
    "mxfp4": 38,
}  # fmt: skip
REPLACED = (
    *("general.file_type", "general.quantization_version", "general.alignment"),
    *("split.no", "split.count", "split.tensors.count"),
)
UINT32, INT32, FLOAT32, BOOL = 4, 5, 6, 7

TensorInfo = tuple[str, tuple[int, ...], int, int]  # name, shape (inputs first), type, offset


def aligned(offset: int) -> int:
    """Return the next offset at which a tensor may begin."""
    return -(-offset // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def gguf_header(metadata: Mapping[str, bytes], tensors: Sequence[TensorInfo]) -> bytes:
    """Return all bytes before the data; ``metadata`` values come from :func:`encoded`."""
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_string(key), value]
    for name, shape, kind, offset in tensors:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        parts += [_string(name), dims, struct.pack("<IQ", kind, offset)]
    header = b"".join(parts)
    return header + bytes(aligned(len(header)) - len(header))


def encoded(value: Any) -> bytes:
    """Return a metadata value with its type: integers as u32, in arrays as i32."""
    if isinstance(value, list):
        kind = {str: STRING, bool: BOOL, int: INT32, float: FLOAT32}[type(value[0])] if value else 4
        codes = {BOOL: "?", INT32: "i", FLOAT32: "f"}
        if kind == STRING:
            data = b"".join(map(_string, value))
        else:
            data = struct.pack(f"<{len(value)}{codes.get(kind, 'I')}", *value)
        return struct.pack("<IIQ", ARRAY, kind, len(value)) + data
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<II", UINT32, value)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def metadata_of(
    checkpoint: Checkpoint, types: Sequence[str], tokenizer: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the metadata of a GGUF file of a directory.

    ``tokenizer`` has the keys for tokenizer and sampling. ModelFileError if GGUF files of this
    architecture have tensors that we do not make.
    """
    plain_layers(checkpoint.config, CANNOT)
    if not family_named(checkpoint.config.architecture).gguf_is_usual:
        raise ModelFileError(
            f"{checkpoint.path}: {CANNOT} {checkpoint.config.architecture}, whose files have"
            " tensors of their own names"
        )
    values = config_metadata(checkpoint.config, checkpoint.name) | dict(tokenizer)
    return {key: encoded(value) for key, value in values.items()} | of_types(types)


def metadata_like(source: GgufFile, types: Sequence[str]) -> dict[str, bytes]:
    """Return the metadata of a GGUF file of another: byte for byte that one's but for its types."""
    found = {
        key: bytes(source.file.view[start:end])
        for key, (start, end) in source.value_spans.items()
        if key not in REPLACED
    }
    return found | of_types(types)


def of_types(types: Sequence[str]) -> dict[str, bytes]:
    """Return the metadata that follow from the types of a file's matrices."""
    common = Counter(types).most_common(1)[0][0]
    return {
        "general.file_type": encoded(FILE_TYPES[common]),
        "general.quantization_version": encoded(QUANTIZATION_VERSION),
    }


def config_metadata(config: ModelConfig, name: str) -> dict[str, Any]:
    """Return the metadata keys that describe the model."""
    family, plain = family_named(config.architecture), plain_layers(config, CANNOT)
    arch = family.gguf or "llama"
    if family.gguf is None and config.sliding_window is not None:
        raise ModelFileError(
            f"sliding_window is {config.sliding_window}: GGUF has no {config.architecture} with a"
            " sliding window; accepted with --gguf: null"
        )
    values: dict[str, Any] = {
        "general.architecture": arch,
        "general.type": "model",
        "general.name": name,
        f"{arch}.vocab_size": config.vocab_size,
        f"{arch}.context_length": config.context_length,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.block_count": config.n_layers,
        f"{arch}.feed_forward_length": plain.ffn.size,
        f"{arch}.attention.head_count": plain.attention.n_heads,
        f"{arch}.attention.head_count_kv": plain.attention.n_kv_heads,
        f"{arch}.attention.key_length": plain.attention.head_dim,
        f"{arch}.attention.value_length": plain.attention.head_dim,
        f"{arch}.rope.dimension_count": plain.attention.head_dim,
        f"{arch}.rope.freq_base": plain.rope.theta,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if config.sliding_window is not None:
        values[f"{arch}.attention.sliding_window"] = config.sliding_window
    return values
