"""Reads ``tokenizer.model``: a SentencePiece ModelProto, as protocol buffers store it.

Fields (sentencepiece_model.proto): 1 pieces (1 text, 2 score, 3 type), 2 trainer_spec (3 model
type, 40 to 43 ids of unknown, bos, eos, padding), 3 normalizer_spec (2 precompiled character map,
3 add_dummy_prefix, 4 remove_extra_whitespaces).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.vocabulary.gguf_text import TokenType

MAX_BYTES = 64 << 20
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # wire types
# Model types to GGUF's names; GGUF has no others.
KINDS = {1: "t5", 2: "llama"}
SPECIAL_IDS = {40: ("unknown", 0), 41: ("bos", 1), 42: ("eos", 2), 43: ("padding", -1)}


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """Return the vocabulary as GGUF metadata, without the prefix of its keys.

    ModelFileError if the file is not supported.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ModelFileError(f"{path}: {path.stat().st_size} bytes; at most {MAX_BYTES} are read")
    tokens, scores, kinds = [], [], []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                piece = dict(_fields(value))
                tokens.append(piece.get(1, b"").decode())
                scores.append(struct.unpack("<f", piece.get(2, bytes(4)))[0])
                kinds.append(piece.get(3, TokenType.NORMAL.value))
            elif number in (2, 3):
                (trainer if number == 2 else normalizer).update(_fields(value))
        if not tokens:
            raise ValueError("no pieces")
    except (ValueError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise ModelFileError(
            f"{path}: not a SentencePiece model: {error}; other kinds of tokenizer.model, as that"
            " of tiktoken, must be converted to tokenizer.json first"
        ) from None
    kind = KINDS.get(trainer.get(3, 1))
    if kind is None:
        raise ModelFileError(
            f"{path}: model type {trainer.get(3, 1)}; unigram (1) or BPE (2) is needed"
        )
    found: dict[str, Any] = {
        "model": kind,
        "tokens": tokens,
        "scores": scores,
        "token_type": kinds,
        "add_space_prefix": bool(normalizer.get(3, 1)),
        "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
    }
    if kind == "t5" and normalizer.get(2):
        found["precompiled_charsmap"] = list(normalizer[2])
    for field, (name, default) in SPECIAL_IDS.items():
        number = trainer.get(field, default)
        if 0 <= number < len(tokens):
            found[f"{name}_token_id"] = number
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message in order: number, and an integer or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, value if value < 1 << 63 else value - (1 << 64)
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (EIGHT_BYTES, FOUR_BYTES):
            size = 8 if wire == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes at byte {at} ends beyond {len(data)}")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a number of more than 64 bits at byte {at}")
