"""Writes the vocabulary of GGUF metadata as directories without tokenizer.json have it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

KEY = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a message, as protocol buffers write it."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value & (1 << 64) - 1)


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def sentencepiece(metadata: dict[str, Any]) -> bytes:
    """A ModelProto with the pieces of a vocabulary."""
    out = b""
    names = ("tokens", "scores", "token_type")
    for text, score, kind in zip(*(metadata[KEY + name] for name in names), strict=True):
        piece = field(1, text.encode()) + field(2, float(score))
        out += field(1, piece + (field(3, kind) if kind != 1 else b""))
    kind = {"t5": 1, "llama": 2}[metadata[KEY + "model"]]
    trainer = field(3, kind) + field(43, -1)
    for number, name in ((40, "unknown"), (41, "bos"), (42, "eos")):
        if f"{KEY}{name}_token_id" in metadata:
            trainer += field(number, metadata[f"{KEY}{name}_token_id"])
    prefix = metadata.get(KEY + "add_space_prefix", True)
    normalizer = field(1, b"identity") + field(3, int(prefix)) + field(4, 0)
    return out + field(2, trainer) + field(3, normalizer)


def write_sentencepiece(folder: Path, metadata: dict[str, Any], **config: Any) -> Path:
    """Write tokenizer.model and tokenizer_config.json."""
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(sentencepiece(metadata))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_byte_level(folder: Path, metadata: dict[str, Any], n_plain: int, **config: Any) -> Path:
    """Write vocab.json with the first tokens, merges.txt and what was added behind them."""
    folder.mkdir()
    tokens, kinds = metadata[KEY + "tokens"], metadata[KEY + "token_type"]
    vocab = {text: number for number, text in enumerate(tokens[:n_plain])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    merges = ["#version: 0.2", *metadata[KEY + "merges"], ""]
    (folder / "merges.txt").write_text("\n".join(merges))
    added = {
        str(number): {"content": tokens[number], "special": kinds[number] == CONTROL}
        for number in range(n_plain, len(tokens))
    }
    about = {"added_tokens_decoder": added} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder
